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
import java.util.List;
import java.util.Map;

/** A sender of weights as its trainer uses it: commands and events of docs/boundary.md. */
final class SenderEngine implements EngineSubject {
    private final SubjectPorts ports;
    private final WeightSender sender;

    SenderEngine(ByteString manifestDigest, Region region, SubjectPorts ports) {
        this.ports = ports;
        this.sender =
                new WeightSender(manifestDigest, region, LandingParts.PRODUCTION, ports, new Reported(ports.events()));
    }

    /** Events as JSON. */
    private record Reported(EventSink sink) implements SenderEvents {
        @Override
        public void attached(String ticket, String host) {
            sink.add(Map.of("event", "attached", "ticket", ticket, "host", PeerText.oneLine(host)));
        }

        @Override
        public void landed(String ticket, long updateId) {
            sink.add(Map.of("event", "landed", "ticket", ticket, "updateId", updateId));
        }

        @Override
        public void applied(String ticket, long updateId) {
            sink.add(Map.of("event", "applied", "ticket", ticket, "updateId", updateId));
        }

        @Override
        public void refused(String ticket, long updateId, String reason) {
            String line = PeerText.oneLine(reason);
            sink.add(Map.of("event", "refused", "ticket", ticket, "updateId", updateId, "reason", line));
        }

        @Override
        public void lost(String ticket, String reason) {
            sink.add(Map.of("event", "lost", "ticket", ticket, "reason", PeerText.oneLine(reason)));
        }
    }

    @Override
    public ServedSubject served() {
        return sender;
    }

    @Override
    public List<Runnable> commands(List<Fields> commands) {
        return commands.stream().map(this::command).toList();
    }

    private Runnable command(Fields command) {
        if (!command.text("do").equals("send")) {
            throw new IllegalArgumentException(
                    "command " + command.text("do") + " is none of a sender of weights, expected send");
        }
        long updateId = command.integer("updateId");
        long version = command.integer("version");
        List<String> tickets = command.texts("tickets");
        if (version < 1) {
            throw new IllegalArgumentException("send.version is " + version + ", expected 1 or more");
        }
        return () -> sender.send(updateId, version, tickets);
    }

    @Override
    public Map<String, Integer> held() {
        return sender.held();
    }

    @Override
    public MessengerState describe(int rowsMax) {
        return WeightsState.of(ports);
    }

    @Override
    public void close() {}
}
