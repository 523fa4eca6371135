package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.transfer.HostMemory;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.locks.LockSupport;

/** A sender or a host of weights, opened as a trainer or an engine opens one. For one thread. */
final class WeightsSide implements AutoCloseable {
    private static final long POLL_PERIOD_NS = 50_000;

    final OpenResult opened;
    private final HostMemory memory;
    private final MessengerHost host;
    private final Queue<Map<?, ?>> events = new ArrayDeque<>();
    private String digest = "";

    WeightsSide(MessengerHost host, String side, String manifest, long lengthBytes, Map<String, Object> optionChanges) {
        this.host = host;
        memory = HostMemory.allocate("weights", lengthBytes);
        Map<String, Object> options = EngineDouble.options("both");
        options.put("engineId", side);
        options.putAll(optionChanges);
        Map<String, Object> subject = new LinkedHashMap<>();
        subject.put("kind", "weights");
        subject.put("side", side);
        subject.put("manifestDigest", manifest);
        subject.put("address", bytes().address());
        subject.put("lengthBytes", lengthBytes);
        subject.put("memfd", memory.memfd());
        opened = host.open(EngineDouble.encode(Map.of("options", options, "subject", subject)));
    }

    MemorySegment bytes() {
        return memory.memory();
    }

    void dial(WeightsSide sender, String ticket, String refusal) {
        submit(Map.of(
                "do",
                "dial",
                "host",
                "127.0.0.1",
                "port",
                sender.opened.controlPort(),
                "ticket",
                ticket,
                "refusal",
                refusal));
    }

    void send(long updateId, long version, String... tickets) {
        submit(Map.of("do", "send", "updateId", updateId, "version", version, "tickets", List.of(tickets)));
    }

    void apply(long updateId) {
        submit(Map.of("do", "apply", "updateId", updateId));
    }

    void applied(long updateId, String failure) {
        submit(Map.of("do", "applied", "updateId", updateId, "failure", failure));
    }

    /** The digest that the last event named. */
    String digest() {
        return digest;
    }

    private void submit(Map<String, Object> command) {
        host.submit(opened.handle(), EngineDouble.encode(Map.of("commands", List.of(command))));
    }

    /** The next event but log lines: its name, what it is about, and its reason. */
    String next() {
        long limitNs = System.nanoTime() + EngineDouble.AWAIT_LIMIT_NS;
        while (System.nanoTime() < limitNs) {
            poll();
            Map<?, ?> event = events.poll();
            if (event != null) {
                digest = String.valueOf(event.get("digest"));
                StringBuilder line = new StringBuilder(String.valueOf(event.get("event")));
                for (String field : List.of("ticket", "updateId", "version", "reason")) {
                    if (event.get(field) != null) {
                        line.append(' ').append(event.get(field));
                    }
                }
                return line.toString();
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        throw new AssertionError("no event came: " + EngineDouble.leakCheck(host, opened));
    }

    /** Waits until nothing is held for updates. */
    void awaitClean() {
        EngineDouble.awaitClean(host, opened);
    }

    private void poll() {
        EngineDouble.pollInto(events, host, opened);
    }

    @Override
    public void close() {
        host.close(opened.handle());
        memory.close();
    }
}
