package io.kvmessenger.connector;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/** The events of one messenger that a test has polled and not yet taken. For the test's thread. */
final class PolledEvents {
    private static final long POLL_PERIOD_NS = 100_000;

    private final MessengerHost host;
    private final long handle;
    private final int capacityBytes;
    private final long limitNs;
    final List<Map<?, ?>> events = new ArrayList<>();

    /**
     * @param capacityBytes what one poll may take
     * @param limitNs after that long without the event a test fails
     */
    PolledEvents(MessengerHost host, long handle, int capacityBytes, long limitNs) {
        this.host = host;
        this.handle = handle;
        this.capacityBytes = capacityBytes;
        this.limitNs = limitNs;
    }

    /** Takes the event of this kind that comes for the request; fails after the limit. */
    Map<?, ?> await(String kind, String request) {
        long endNs = System.nanoTime() + limitNs;
        while (System.nanoTime() - endNs < 0) {
            byte[] json = host.poll(handle, capacityBytes);
            if (json.length > 0) {
                ((List<?>) EngineDouble.decode(json).get("events")).forEach(event -> events.add((Map<?, ?>) event));
            }
            for (Map<?, ?> event : events) {
                if (kind.equals(event.get("event")) && request.equals(event.get("request"))) {
                    events.remove(event);
                    return event;
                }
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        throw new AssertionError("no " + kind + " for " + request + "; events: " + events);
    }
}
