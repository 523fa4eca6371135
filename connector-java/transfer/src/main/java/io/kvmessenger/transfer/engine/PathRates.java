package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Endpoint;
import java.util.Arrays;

/**
 * Estimates how fast each of a peer's networks moves bytes, and selects the network for the next slice: the one that
 * would finish it first.
 *
 * <p>A rate is a moving average of the bytes that the peer's machine acknowledges, over the time in which the network
 * had work. It bounds how many bytes a network may hold in advance, and tells whether the other networks would finish
 * everything that is left sooner. Worker only; time is a parameter; allocates nothing after construction. It knows no
 * paths and posts nothing.
 */
final class PathRates {
    /** How far ahead a network is committed: bytes given to it cannot be taken back if it turns out slow. */
    static final long COMMITTED_NS = 2_000_000;

    /** Slices that a network may hold at least: one in flight, and one to follow it. */
    static final int SLICES_MIN = 2;

    static final long SLICE_MIN_BYTES = 32 << 10;
    static final long SLICE_MAX_BYTES = 1 << 20;
    private static final int SLICES_COMMITTED = 4;

    /** Time constant of the moving average. */
    static final long MEMORY_NS = 10_000_000;

    /** Observation time after which a rate counts as known: acknowledgements arrive in bursts. */
    static final long KNOWN_AFTER_NS = 1_000_000;

    /** An idle network acknowledges nothing for one round trip; beyond this time it counts as slow. */
    static final long FIRST_ACK_NS = 20_000_000;

    /** Shortest interval between samples: each costs a system call per path. */
    static final long SAMPLE_NS = 250_000;

    /** A network that acknowledges nothing for this long, while another one does, is given up. */
    static final long STALL_LIMIT_NS = 1_000_000_000L;

    private final boolean[] open = new boolean[Endpoint.NETWORKS_MAX];
    /** Bytes not acknowledged at the last sample. */
    private final long[] sampledBytes = new long[Endpoint.NETWORKS_MAX];
    /** Bytes given since the last sample. */
    private final long[] givenBytes = new long[Endpoint.NETWORKS_MAX];

    private final long[] sampledNs = new long[Endpoint.NETWORKS_MAX];
    /** When the network was last idle or last acknowledged something. */
    private final long[] movedNs = new long[Endpoint.NETWORKS_MAX];
    /** Whether anything was acknowledged since the network was last idle. */
    private final boolean[] flowing = new boolean[Endpoint.NETWORKS_MAX];
    /** Observation time of the rate, at most {@link #MEMORY_NS}. */
    private final long[] seenNs = new long[Endpoint.NETWORKS_MAX];

    private final double[] bytesPerNs = new double[Endpoint.NETWORKS_MAX];

    PathRates(long nowNs) {
        Arrays.fill(sampledNs, nowNs);
        Arrays.fill(movedNs, nowNs);
    }

    /** Whether the network may be given work; a network that comes back after a loss starts with an unknown rate. */
    void setOpen(int network, boolean isOpen, long nowNs) {
        if (isOpen == open[network]) {
            return;
        }
        open[network] = isOpen;
        forget(network, 0, nowNs);
        seenNs[network] = 0;
        bytesPerNs[network] = 0;
    }

    /** One of the network's paths was lost, and its bytes do not count any more; {@code heldBytes} are left. */
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

    /** The network now holds {@code heldBytes} that are not acknowledged. */
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

    /** Whether there was anything to acknowledge: otherwise a sample would show a rate of 0 and exclude the network. */
    private boolean hadWork(int network) {
        return sampledBytes[network] + givenBytes[network] > 0;
    }

    /** Learns a lower bound, as a network that was idle for part of the time may be faster. */
    private void learnMoved(int network, long ackedBytes, long tookNs, boolean idle) {
        boolean wholeTime = flowing[network] && !idle;
        if (wholeTime || ackedBytes > bytesPerNs[network] * tookNs) {
            learn(network, ackedBytes, tookNs);
        }
    }

    /** A plain average at first, until there are enough observations for a moving one. */
    private void learn(int network, long ackedBytes, long tookNs) {
        if (tookNs <= 0) {
            return;
        }
        double share = (double) tookNs / (tookNs + seenNs[network]);
        bytesPerNs[network] += share * ((double) ackedBytes / tookNs - bytesPerNs[network]);
        seenNs[network] = Math.min(MEMORY_NS, seenNs[network] + tookNs);
    }

    /** Zero while unknown. */
    double bytesPerNs(int network) {
        return seenNs[network] < KNOWN_AFTER_NS ? 0 : bytesPerNs[network];
    }

    /** Bytes that the network may hold beyond those in flight. */
    long committedBytes(int network) {
        return Math.max(SLICES_MIN * SLICE_MIN_BYTES, (long) (bytesPerNs(network) * COMMITTED_NS));
    }

    long sliceBytes(int network) {
        return Math.clamp(committedBytes(network) / SLICES_COMMITTED, SLICE_MIN_BYTES, SLICE_MAX_BYTES);
    }

    /**
     * Whether the network should take a slice: not if the others would finish all waiting bytes before this network
     * finishes the slice. The network that would be first always takes it.
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

    /** When the network would finish what it holds plus {@code moreBytes}; immediately while its rate is unknown. */
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

    /** Whether the network has acknowledged nothing for too long, although the peer as a whole accepts data. */
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
