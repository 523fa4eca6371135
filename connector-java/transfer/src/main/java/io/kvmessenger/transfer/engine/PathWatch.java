package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Notices paths that take writes and of which nothing is heard, as when the network between swallows what it is given.
 *
 * <p>Worker only. It looks once a limit: a write that was the oldest of its path in two looks was silent for that long. It reads
 * no clock and costs nothing a write.
 */
final class PathWatch {
    private final long limitNs;
    /** By path: its oldest write when it was looked at last. */
    private final Map<Endpoint, Long> oldest = new HashMap<>(2);

    private boolean begun;
    private long lookedNs;

    /** @param limitNs 0 = it notices nothing */
    PathWatch(long limitNs) {
        this.limitNs = limitNs;
    }

    /** Those whose oldest write has been the same for the limit, each told once in each limit. */
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
