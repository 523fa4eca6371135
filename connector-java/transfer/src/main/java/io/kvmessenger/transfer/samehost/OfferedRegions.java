package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.RemoteKey;
import java.util.concurrent.ConcurrentSkipListMap;

/**
 * The regions that peers may map, in order of registration: each peer is offered all of them, including later ones.
 *
 * <p>Messenger's thread writes, the worker reads.
 */
public final class OfferedRegions {
    /** An id before the first region. */
    public static final int NONE = 0;

    private final ConcurrentSkipListMap<Integer, RemoteKey> keys = new ConcurrentSkipListMap<>();
    private volatile int lastRegionId = NONE;

    public void add(RemoteKey key) {
        keys.put(key.regionId(), key);
        lastRegionId = Math.max(lastRegionId, key.regionId());
    }

    public void remove(RemoteKey key) {
        keys.remove(key.regionId());
    }

    /** The first region after the one of this id, or null. */
    public RemoteKey after(int regionId) {
        if (regionId >= lastRegionId) {
            return null;
        }
        var next = keys.higherEntry(regionId);
        return next == null ? null : next.getValue();
    }
}
