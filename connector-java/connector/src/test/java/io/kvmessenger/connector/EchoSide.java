package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.locks.LockSupport;

/** A messenger without any KV, opened as an engine opens one. For one thread. */
final class EchoSide implements AutoCloseable {
    static final int REGION_LENGTH_BYTES = 1 << 20;

    private static final long POLL_PERIOD_NS = 50_000;

    /** The content of its region, where the test reads and writes it. */
    final MemorySegment bytes;

    final OpenResult opened;
    private final EchoRegion region;
    private final MessengerHost host;
    private final Queue<Map<?, ?>> events = new ArrayDeque<>();

    /** @param host may have other messengers, of whatever subject */
    EchoSide(MessengerHost host, String name, String word, String secret, String transport) {
        this(host, name, word, secret, transport, REGION_LENGTH_BYTES);
    }

    /** @param transport for {@code cuda} the region is a device's; for {@code verbs} the name decides on the device */
    EchoSide(MessengerHost host, String name, String word, String secret, String transport, long regionLengthBytes) {
        this.host = host;
        region = transport.equals(TransferOptions.CUDA)
                ? EchoRegion.onDevice(regionLengthBytes)
                : EchoRegion.onHost(regionLengthBytes);
        bytes = region.bytes();
        Map<String, Object> options = EngineDouble.options("both");
        options.put("engineId", name);
        options.put("sharedSecret", secret);
        options.put("transports", List.of(transport));
        if (transport.equals(TransferOptions.VERBS)) {
            options.put("verbsDevices", List.of(RdmaDevices.deviceOf(name)));
        }
        Map<String, Object> subject = new LinkedHashMap<>();
        subject.put("kind", "echo");
        subject.put("word", word);
        subject.putAll(region.described());
        opened = host.open(EngineDouble.encode(Map.of("options", options, "subject", subject)));
    }

    /** Makes what the test wrote the content of the region. */
    void publish() {
        region.publish();
    }

    /** Makes the content of the region what the test reads. */
    void refresh() {
        region.refresh();
    }

    /** Where answers begin. */
    long halfBytes() {
        return bytes.byteSize() / 2;
    }

    /** Asks the messenger at this port for the first bytes of its region. */
    void ask(long id, int ofPort, int lengthBytes) {
        Map<String, Object> ask =
                Map.of("do", "ask", "id", id, "host", "127.0.0.1", "port", ofPort, "lengthBytes", lengthBytes);
        host.submit(opened.handle(), EngineDouble.encode(Map.of("commands", List.of(ask))));
    }

    /** The next end of an ask: {@code arrived ID}, or {@code failed ID: REASON}. */
    String end() {
        long limitNs = System.nanoTime() + EngineDouble.AWAIT_LIMIT_NS;
        while (System.nanoTime() < limitNs) {
            poll();
            Map<?, ?> event = events.poll();
            if (event != null) {
                Object reason = event.get("reason");
                return event.get("event") + " " + event.get("id") + (reason == null ? "" : ": " + reason);
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        throw new AssertionError("no ask has ended: " + held());
    }

    /** Whether no further end waits. */
    boolean quiet() {
        poll();
        return events.isEmpty();
    }

    Map<?, ?> held() {
        return EngineDouble.leakCheck(host, opened);
    }

    /** Waits until nothing is held for asks, of either side. */
    void awaitClean() {
        EngineDouble.awaitClean(host, opened);
    }

    private void poll() {
        EngineDouble.pollInto(events, host, opened);
    }

    @Override
    public void close() {
        host.close(opened.handle());
        region.close();
    }
}
