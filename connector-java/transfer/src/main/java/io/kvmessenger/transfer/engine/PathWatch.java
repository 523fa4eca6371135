package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Detects paths that accept writes but report no completions, as when the network silently drops packets.
 *
 * <p>Worker only. It looks once per limit: a path whose oldest write is the same in two looks has been silent for that
 * long. It reads no clock, and its cost does not depend on the number of writes.
 */
final class PathWatch {
    private final long limitNs;
    /** By path: its oldest write at the last look. */
    private final Map<Endpoint, Long> oldest = new HashMap<>(2);

    private boolean begun;
    private long lookedNs;

    /** @param limitNs 0 = detection is off */
    PathWatch(long limitNs) {
        this.limitNs = limitNs;
    }

    /** The paths whose oldest write has not changed for the limit; each is reported once per limit. */
    List<Endpoint> silent(List<Endpoint> paths, WriteLedger writes, long nowNs) {
        if (limitNs == 0 || (begun && nowNs - lookedNs < limitNs)) {
            return List.of();
        }
        begun = true;
        lookedNs = nowNs;
        oldest.keySet().retainAll(paths);
        List<Endpoint> silent = new ArrayList<>(0);
        for (Endpoint path : paths) {
            long post = writes.oldestPost(path);
            Long before = oldest.put(path, post);
            if (post != WriteLedger.NO_POST && Long.valueOf(post).equals(before)) {
                silent.add(path);
            }
        }
        return silent;
    }
}
