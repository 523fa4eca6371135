package io.kvmessenger.transfer.libfabric;

import java.util.ArrayList;
import java.util.List;

/**
 * Endpoints whose peers were never ready, kept for a while before they are closed.
 *
 * <p>A connection to an endpoint that libfabric's tcp provider has accepted, but whose first message it has not read,
 * points to the endpoint's memory. The provider does not end it with the endpoint (a note in {@code xnet_pep_close}, in
 * 1.17.0 as in later releases), and touches that memory when the connection says or ends something: the process crashes. So the
 * peer gets time to end it first. A peer that was never ready has no key of a region, so nothing lands meanwhile.
 *
 * <p>Worker only. It ends no connection itself.
 */
final class PartedEndpoints {
    /** Enough for a peer to see that its control socket was closed, and to close its endpoint. */
    static final long WAIT_NS = 2_000_000_000L;

    private record Parted(FabricEndpoint endpoint, long dueNs) {}

    private final List<Parted> waiting = new ArrayList<>();

    void add(FabricEndpoint endpoint, long nowNs) {
        waiting.add(new Parted(endpoint, nowNs + WAIT_NS));
    }

    /** Lets the provider make progress, and closes what is due. Returns whether any endpoint is left. */
    boolean poll(long nowNs) {
        if (waiting.isEmpty()) {
            return false;
        }
        waiting.removeIf(parted -> {
            parted.endpoint.read();
            return nowNs - parted.dueNs >= 0 && closes(parted.endpoint);
        });
        return !waiting.isEmpty();
    }

    private static boolean closes(FabricEndpoint endpoint) {
        try {
            endpoint.close();
            return true;
        } catch (IllegalStateException refused) { // the provider is busy with it: the next duty cycle tries again
            return false;
        }
    }

    /** Closes all of them, before their domain is closed: no connection is looked at after that. */
    void close() {
        waiting.forEach(parted -> closes(parted.endpoint));
        waiting.clear();
    }
}
