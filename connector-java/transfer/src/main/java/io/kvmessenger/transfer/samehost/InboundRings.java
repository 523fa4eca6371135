package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.Domain;
import java.util.ArrayList;
import java.util.List;

/** The rings of all peers that write into this engine's memory through one domain. Worker only. */
public final class InboundRings {
    private final List<RingInboundPaths> all = new ArrayList<>();

    public void add(RingInboundPaths paths) {
        all.add(paths);
    }

    /** Takes what has arrived; returns as {@link Domain#poll} does. */
    public int poll(long nowNs) {
        int work = 0;
        boolean lookSoon = false;
        for (int i = all.size() - 1; i >= 0; i--) {
            RingInboundPaths paths = all.get(i);
            work += paths.poll(nowNs);
            lookSoon |= paths.offersMore();
            if (paths.isClosed()) {
                all.remove(paths);
            }
        }
        return work == 0 && lookSoon ? Domain.LOOK_SOON : work;
    }

    /** The worker is about to sleep: from now on a push wakes it. */
    public void park() {
        for (int i = 0; i < all.size(); i++) {
            all.get(i).park();
        }
    }

    public void unpark() {
        for (int i = 0; i < all.size(); i++) {
            all.get(i).unpark();
        }
    }

    public void clear() {
        all.clear();
    }
}
