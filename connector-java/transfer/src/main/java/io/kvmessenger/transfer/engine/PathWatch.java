package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Detects paths that accept writes but report no completions, as when the network silently drops packets.
 *
 * <p>Worker only. It looks once per limit: a path whose oldest write is the same in two looks, and of which the peer's
 * machine has acknowledged nothing in between, has been silent for that long. One write may take many limits. It reads no
 * clock, and its cost does not depend on the number of writes.
 */
final class PathWatch {
    private final long limitNs;
    /** What a path had at a look. */
    private record Look(long oldestPost, long acknowledgedBytes) {}

    /** By path: the last look. */
    private final Map<PathLink, Look> looks = new HashMap<>(2);

    private boolean begun;
    private long lookedNs;

    /** @param limitNs 0 = detection is off */
    PathWatch(long limitNs) {
        this.limitNs = limitNs;
    }

    /** The paths on which nothing has changed for the limit, although they have writes; each is reported once per limit. */
    List<Endpoint> silent(List<PathLink> paths, PeerWrites writes, long nowNs) {
        if (limitNs == 0 || (begun && nowNs - lookedNs < limitNs)) {
            return List.of();
        }
        begun = true;
        lookedNs = nowNs;
        looks.keySet().retainAll(paths);
        List<Endpoint> silent = new ArrayList<>(0);
        for (PathLink watched : paths) {
            Endpoint path = watched.path();
            Look look = new Look(writes.oldestPost(path), path.acknowledgedBytes());
            if (look.equals(looks.put(watched, look)) && look.oldestPost != WriteLedger.NO_POST) {
                silent.add(path);
            }
        }
        return silent;
    }
}
