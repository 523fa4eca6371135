package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.EventSink;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.transfer.Region;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** A host of weights as its engine uses it: commands and events of docs/boundary.md. */
final class ReceiverEngine implements EngineSubject {
    private final SubjectPorts ports;
    private final WeightReceiver receiver;

    ReceiverEngine(ByteString manifestDigest, Region region, SubjectPorts ports) {
        this.ports = ports;
        this.receiver = new WeightReceiver(
                manifestDigest, region, LandingParts.PRODUCTION, ports, new Reported(ports.events()));
    }

    /** Events as JSON. */
    private record Reported(EventSink sink) implements ReceiverEvents {
        @Override
        public void landed(long updateId, long version, ByteString contentDigest) {
            String digest = HexFormat.of().formatHex(contentDigest.toByteArray());
            sink.add(Map.of("event", "landed", "updateId", updateId, "version", version, "digest", digest));
        }

        @Override
        public void decided(long updateId, String reason) {
            sink.add(Map.of("event", "decided", "updateId", updateId, "reason", PeerText.oneLine(reason)));
        }

        @Override
        public void ended(String ticket, String reason) {
            sink.add(Map.of("event", "ended", "ticket", ticket, "reason", PeerText.oneLine(reason)));
        }
    }

    @Override
    public ServedSubject served() {
        return receiver;
    }

    @Override
    public List<Runnable> commands(List<Fields> commands) {
        return commands.stream().map(this::command).toList();
    }

    private Runnable command(Fields command) {
        return switch (command.text("do")) {
            case "dial" -> {
                String host = command.text("host");
                int port = command.count("port");
                String ticket = command.text("ticket", WeightsFrames.TICKET_LENGTH_MAX);
                String refusal = command.text("refusal", PeerText.SENTENCE_LENGTH_MAX);
                yield () -> receiver.dial(host, port, ticket, refusal);
            }
            case "apply" -> {
                long updateId = command.integer("updateId");
                yield () -> receiver.apply(updateId);
            }
            case "applied" -> {
                long updateId = command.integer("updateId");
                String failure = command.text("failure");
                yield () -> receiver.applied(updateId, failure);
            }
            default ->
                throw new IllegalArgumentException("command " + command.text("do")
                        + " is none of a host of weights, expected dial, apply or applied");
        };
    }

    @Override
    public Map<String, Integer> held() {
        return receiver.held();
    }

    @Override
    public MessengerState describe(int rowsMax) {
        return WeightsState.of(ports);
    }

    @Override
    public void close() {}
}
