package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * Distributes a peer's writes over paths of several networks, in small slices from the peer's single queue, each to the
 * network that would finish it first.
 *
 * <p>Worker only. {@link PathRates} decides; this class asks the paths what they hold and posts to them.
 */
final class PathSpread {
    /** Posts batches to a path. */
    interface Posting {
        /** As {@link Endpoint#post}. */
        int post(Endpoint path, WriteBatch batch, long postId);

        /** As {@link Endpoint#heldBytes}, plus what is queued in front of the path. */
        long heldBytes(Endpoint path);
    }

    /** A path's limit is updated when it has changed by more than one part in this many. */
    private static final int LIMIT_STEPS = 8;

    private final Posting posting;
    private final PathRates rates;
    private final Figures figures;
    private final LongSupplier clock;
    private final WriteBatch batch = new WriteBatch();
    private final int[] pathCount = new int[Endpoint.NETWORKS_MAX];
    private final long[] limitBytes = new long[Endpoint.NETWORKS_MAX];
    private int firstPath;
    private boolean waits;

    PathSpread(Posting posting, Figures figures, LongSupplier clock) {
        this.posting = posting;
        this.figures = figures;
        this.clock = clock;
        rates = new PathRates(clock.getAsLong());
    }

    /** Replaces the set of open paths. */
    void onPathsChanged(List<PathLink> paths) {
        long nowNs = clock.getAsLong();
        for (int network = 0; network < pathCount.length; network++) {
            int before = pathCount[network];
            pathCount[network] = 0;
            long heldBytes = 0;
            for (int i = 0; i < paths.size(); i++) {
                Endpoint path = paths.get(i).path();
                if (path.network() == network) {
                    pathCount[network]++;
                    heldBytes += posting.heldBytes(path);
                }
            }
            rates.setOpen(network, pathCount[network] > 0, nowNs);
            if (pathCount[network] != before) {
                rates.forget(network, heldBytes, nowNs);
                limitBytes[network] = 0;
                limit(paths, network);
            }
        }
    }

    /** Whether anything waits for a path without an event to signal when a path has room. */
    boolean waits() {
        return waits;
    }

    /** Returns how much was posted. */
    int post(List<PathLink> paths, PeerWrites writes, long nowNs) {
        sample(paths, nowNs);
        int work = 0;
        int count = paths.size();
        for (int i = 0; i < count && writes.hasWork(); i++) {
            work += postTo(paths.get((firstPath + i) % count), writes);
        }
        firstPath = (firstPath + 1) % count;
        waits = writes.hasWork();
        return work;
    }

    private void sample(List<PathLink> paths, long nowNs) {
        for (int network = 0; network < pathCount.length; network++) {
            if (!rates.isSampleDue(network, nowNs)) {
                continue;
            }
            long heldBytes = 0;
            for (int i = 0; i < paths.size(); i++) {
                Endpoint path = paths.get(i).path();
                heldBytes += path.network() == network ? posting.heldBytes(path) : 0;
            }
            rates.sample(network, heldBytes, nowNs);
            limit(paths, network);
        }
    }

    private void limit(List<PathLink> paths, int network) {
        if (pathCount[network] == 0) {
            return;
        }
        long bytes = Math.max(rates.sliceBytes(network), rates.committedBytes(network) / pathCount[network]);
        if (Math.abs(bytes - limitBytes[network]) <= limitBytes[network] / LIMIT_STEPS) {
            return;
        }
        limitBytes[network] = bytes;
        for (int i = 0; i < paths.size(); i++) {
            if (paths.get(i).path().network() == network) {
                paths.get(i).path().limitUnsent(bytes);
            }
        }
    }

    /** Posts until the path is full, nothing waits, others would finish sooner, or the cycle's budget is used up. */
    private int postTo(PathLink link, PeerWrites writes) {
        Endpoint path = link.path();
        int network = path.network();
        int work = 0;
        long turnBytes = OutboundPeer.TURN_BYTES;
        while (turnBytes > 0 && writes.next(batch, link)) {
            batch.limit(Integer.MAX_VALUE, rates.sliceBytes(network), Long.MAX_VALUE);
            if (!rates.mayTake(network, batch.payloadBytes(), writes.waitingBytes())
                    || posting.post(path, batch, writes.nextPostId()) == 0) {
                break;
            }
            writes.posted(batch, path);
            link.onPosted(writes.offered(), batch.payloadBytes());
            figures.onPosted(batch);
            rates.onGiven(network, batch.payloadBytes());
            turnBytes -= Math.max(1, batch.payloadBytes());
            work++;
        }
        batch.clear();
        return work;
    }

    /** A path of a network that is stalled while another one moves bytes, or null. */
    Endpoint stalled(List<PathLink> paths, long nowNs) {
        for (int i = 0; i < paths.size(); i++) {
            if (rates.isStalled(paths.get(i).path().network(), nowNs)) {
                return paths.get(i).path();
            }
        }
        return null;
    }
}
