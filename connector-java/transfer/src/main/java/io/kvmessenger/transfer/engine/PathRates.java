package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import java.util.Arrays;

/**
 * How fast each of a peer's networks moves bytes, and which of them is to take the next slice: the one where it is done first.
 *
 * <p>A rate is a moving average of what the peer's machine acknowledges, over the time in which the network had something to do.
 * It decides what a network may be committed to ahead of time, and whether the others would be done sooner with all that is left.
 * Worker only; time is a parameter; allocates nothing after it was made. It knows no paths and posts nothing.
 */
final class PathRates {
    /** So far ahead a network is committed: what it holds cannot be taken back when it turns out slow. */
    static final long COMMITTED_NS = 2_000_000;

    /** What a network may hold at least: one slice on its way, and one to follow it. */
    static final int SLICES_MIN = 2;

    static final long SLICE_MIN_BYTES = 32 << 10;
    static final long SLICE_MAX_BYTES = 1 << 20;
    private static final int SLICES_COMMITTED = 4;

    /** Of the moving average. */
    static final long MEMORY_NS = 10_000_000;

    /** Before a rate was seen for so long it is unknown: acknowledgements come in lumps. */
    static final long KNOWN_AFTER_NS = 1_000_000;

    /** An idle network acknowledges nothing for one round trip; for longer than this it is slow. */
    static final long FIRST_ACK_NS = 20_000_000;

    /** Samples are no closer: each costs a system call for each path. */
    static final long SAMPLE_NS = 250_000;

    /** A network that acknowledges nothing for so long, while another is well, is given up. */
    static final long STALL_LIMIT_NS = 1_000_000_000L;

    private final boolean[] open = new boolean[Endpoint.NETWORKS_MAX];
    /** Not acknowledged when it was sampled last. */
    private final long[] sampledBytes = new long[Endpoint.NETWORKS_MAX];
    /** Given since then. */
    private final long[] givenBytes = new long[Endpoint.NETWORKS_MAX];

    private final long[] sampledNs = new long[Endpoint.NETWORKS_MAX];
    /** When it was idle or acknowledged something last. */
    private final long[] movedNs = new long[Endpoint.NETWORKS_MAX];
    /** Whether something was acknowledged since it was idle last. */
    private final boolean[] flowing = new boolean[Endpoint.NETWORKS_MAX];
    /** For how long its rate was seen, at most {@link #MEMORY_NS}. */
    private final long[] seenNs = new long[Endpoint.NETWORKS_MAX];

    private final double[] bytesPerNs = new double[Endpoint.NETWORKS_MAX];

    PathRates(long nowNs) {
        Arrays.fill(sampledNs, nowNs);
        Arrays.fill(movedNs, nowNs);
    }

    /** Whether the network may be given something; what comes back after a loss is a network of which nothing is known. */
    void setOpen(int network, boolean isOpen, long nowNs) {
        if (isOpen == open[network]) {
            return;
        }
        open[network] = isOpen;
        forget(network, 0, nowNs);
        seenNs[network] = 0;
        bytesPerNs[network] = 0;
    }

    /** One of its paths was lost, and what that had is no more its own: so much is left. */
    void forget(int network, long heldBytes, long nowNs) {
        sampledBytes[network] = heldBytes;
        givenBytes[network] = 0;
        sampledNs[network] = nowNs;
        movedNs[network] = nowNs;
        flowing[network] = false;
    }

    void onGiven(int network, long lengthBytes) {
        givenBytes[network] += lengthBytes;
    }

    boolean isSampleDue(int network, long nowNs) {
        return open[network] && nowNs - sampledNs[network] >= SAMPLE_NS;
    }

    /** So much of what it was given is not acknowledged now. */
    void sample(int network, long heldBytes, long nowNs) {
        long tookNs = nowNs - sampledNs[network];
        long ackedBytes = Math.max(0, sampledBytes[network] + givenBytes[network] - heldBytes);
        if (ackedBytes > 0 && tookNs > 0) {
            learnMoved(network, ackedBytes, tookNs, heldBytes == 0);
        } else if (hadWork(network) && (flowing[network] || nowNs - movedNs[network] > FIRST_ACK_NS)) {
            learn(network, 0, tookNs);
        }
        if (ackedBytes > 0 || heldBytes == 0) {
            movedNs[network] = nowNs;
        }
        flowing[network] = heldBytes > 0 && (flowing[network] || ackedBytes > 0);
        sampledBytes[network] = heldBytes;
        givenBytes[network] = 0;
        sampledNs[network] = nowNs;
    }

    /** Of one that had nothing to acknowledge, nothing is learnt: as one that moves nothing it would never be tried. */
    private boolean hadWork(int network) {
        return sampledBytes[network] + givenBytes[network] > 0;
    }

    /** A network that was idle for a part of the time is as fast at least. */
    private void learnMoved(int network, long ackedBytes, long tookNs, boolean idle) {
        boolean wholeTime = flowing[network] && !idle;
        if (wholeTime || ackedBytes > bytesPerNs[network] * tookNs) {
            learn(network, ackedBytes, tookNs);
        }
    }

    /** The average of all that was seen, until that is long enough to forget by. */
    private void learn(int network, long ackedBytes, long tookNs) {
        if (tookNs <= 0) {
            return;
        }
        double share = (double) tookNs / (tookNs + seenNs[network]);
        bytesPerNs[network] += share * ((double) ackedBytes / tookNs - bytesPerNs[network]);
        seenNs[network] = Math.min(MEMORY_NS, seenNs[network] + tookNs);
    }

    /** Zero while it is unknown. */
    double bytesPerNs(int network) {
        return seenNs[network] < KNOWN_AFTER_NS ? 0 : bytesPerNs[network];
    }

    /** What the network may hold beyond what is on its way. */
    long committedBytes(int network) {
        return Math.max(SLICES_MIN * SLICE_MIN_BYTES, (long) (bytesPerNs(network) * COMMITTED_NS));
    }

    /** What it takes at a time. */
    long sliceBytes(int network) {
        return Math.clamp(committedBytes(network) / SLICES_COMMITTED, SLICE_MIN_BYTES, SLICE_MAX_BYTES);
    }

    /**
     * Whether the network is to take a slice: not when the others would have moved all that waits before this one had moved the
     * slice. The network that would be first with it always takes it.
     *
     * @param waitingBytes all that waits, the slice included
     */
    boolean mayTake(int network, long sliceBytes, long waitingBytes) {
        double doneNs = doneNs(network, sliceBytes);
        double othersBytes = 0;
        boolean first = true;
        for (int other = 0; other < open.length; other++) {
            if (other != network && open[other]) {
                first &= doneNs <= doneNs(other, sliceBytes);
                othersBytes += Math.max(0, bytesPerNs(other) * doneNs - heldBytes(other));
            }
        }
        return first || othersBytes < Math.max(1, waitingBytes);
    }

    /** When the network would have moved what it holds and so much more; at once while its rate is unknown. */
    private double doneNs(int network, long moreBytes) {
        double rate = bytesPerNs(network);
        if (seenNs[network] < KNOWN_AFTER_NS) {
            return 0;
        }
        return rate == 0 ? Double.MAX_VALUE : (heldBytes(network) + moreBytes) / rate;
    }

    private long heldBytes(int network) {
        return sampledBytes[network] + givenBytes[network];
    }

    /** Whether nothing of what it holds was acknowledged for too long, and not because the peer takes nothing at all. */
    boolean isStalled(int network, long nowNs) {
        if (!open[network] || !isSilent(network, nowNs, STALL_LIMIT_NS)) {
            return false;
        }
        for (int other = 0; other < open.length; other++) {
            if (other != network && open[other] && !isSilent(other, nowNs, STALL_LIMIT_NS / 2)) {
                return true;
            }
        }
        return false;
    }

    private boolean isSilent(int network, long nowNs, long limitNs) {
        return sampledBytes[network] > 0 && nowNs - movedNs[network] > limitNs;
    }
}
