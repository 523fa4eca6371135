package io.kvmessenger.testkit.echo;

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

/** An echo as its engine uses it: see {@link EchoOpener} for what it takes and reports. */
final class EchoEngine implements EngineSubject {
    private final SubjectPorts ports;
    private final EchoSubject subject;

    EchoEngine(String word, Region region, SubjectPorts ports) {
        this.ports = ports;
        this.subject = new EchoSubject(
                word,
                ports.limits().fetchLimitNs(),
                region,
                ports.sessions(),
                ports.transfer(),
                new Reported(ports.events()),
                ports.clock());
    }

    /** Events as JSON. */
    private record Reported(EventSink sink) implements EchoEvents {
        @Override
        public void arrived(long id) {
            sink.add(Map.of("event", "arrived", "id", id));
        }

        @Override
        public void failed(long id, String reason) {
            sink.add(Map.of("event", "failed", "id", id, "reason", PeerText.oneLine(reason)));
        }
    }

    @Override
    public ServedSubject served() {
        return subject;
    }

    @Override
    public List<Runnable> commands(List<Fields> commands) {
        return commands.stream().map(this::command).toList();
    }

    private Runnable command(Fields command) {
        if (!command.text("do").equals("ask")) {
            throw new IllegalArgumentException(
                    "command " + command.text("do") + " is none of an echo, expected ask: submit asks only");
        }
        long id = command.integer("id");
        String host = command.text("host");
        int port = command.count("port");
        int lengthBytes = command.count("lengthBytes");
        return () -> subject.ask(id, host, port, lengthBytes, ports.clock().nowNs());
    }

    @Override
    public Map<String, Integer> held() {
        return subject.held();
    }

    @Override
    public MessengerState describe(int rowsMax) {
        List<MessengerState.PeerRow> peers = ports.sessions().rows(ports.clock().nowNs());
        return new MessengerState(peers, 0, List.of(), 0, List.of(), 0, List.of(), List.of(), List.of());
    }

    @Override
    public void close() {}
}
