package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TrafficClass;

/**
 * What waits for one link, by class, at this worker and at others; and with it whether a class may post now.
 *
 * <p>While a more urgent class has writes on the link, each other class gets its share of the link's rate, in small
 * amounts; otherwise it gets what it wants. Writes that have not moved for {@link #SILENT_LIMIT_NS} do not count: a peer
 * that takes nothing delays the others for no longer. Worker only; time is a parameter. It posts nothing.
 */
final class LinkLoad {
    /** After this time without progress, writes do not hold up those of other classes any more. */
    static final long SILENT_LIMIT_NS = 1_000_000_000L;

    /** Interval between looks at other workers' rows, while anything depends on them. */
    static final long LOOK_NS = 50_000;

    /** How much of the link's rate is given at once to a class that yields, and kept for it while it does not post. */
    static final long AHEAD_NS = 2_000_000;

    private static final long AHEAD_MIN_BYTES = 64 << 10;

    private final LinkBoard board;
    private final long link;
    private final double share;
    private final long[] queuedBytes = new long[TrafficClass.COUNT];
    private final long[] seenNs = new long[TrafficClass.COUNT];
    /** By class: peers of this worker that have writes of it. */
    private final int[] peerCount = new int[TrafficClass.COUNT];

    private long movedBytes;
    private int row = LinkBoard.NO_ROW;

    private final LinkRate rate;
    /** By class: whether a more urgent one has writes on the link, as of the last look. */
    private final boolean[] contended = new boolean[TrafficClass.COUNT];
    /** By class: workers with writes of it, as of the last look. */
    private final int[] waiterCount = new int[TrafficClass.COUNT];
    /** By class: bytes that it may post while it is contended. */
    private final double[] dueBytes = new double[TrafficClass.COUNT];

    private long lookedNs;
    private boolean changed = true;

    /**
     * A link without traffic.
     *
     * @param link its number on the board
     * @param share of the link's rate that a class keeps beside a more urgent one, above 0 and below 1
     */
    LinkLoad(LinkBoard board, long link, double share, long nowNs) {
        this.board = board;
        this.link = link;
        this.share = share;
        rate = new LinkRate(nowNs);
        lookedNs = nowNs;
    }

    /** A peer's queue has changed. */
    void onQueued(int trafficClass, long moreBytes, long nowNs) {
        long before = queuedBytes[trafficClass];
        queuedBytes[trafficClass] = before + moreBytes;
        seenNs[trafficClass] = nowNs;
        changed |= before == 0 || before + moreBytes == 0;
        if (!board.isWhole()) {
            row = LinkBoard.NO_ROW;
            return;
        }
        if (before == 0 && (row == LinkBoard.NO_ROW || !board.isOwn(row))) {
            row = board.take(link);
            movedBytes = 0;
        }
        if (row != LinkBoard.NO_ROW) {
            board.setQueued(row, trafficClass, queuedBytes[trafficClass]);
            board.setSeen(row, trafficClass, nowNs);
        }
    }

    /** One peer more, or less, has writes of the class. */
    void onPeers(int trafficClass, int more) {
        peerCount[trafficClass] += more;
    }

    /** Bytes of a peer's queue have ended. */
    void onEnded(int trafficClass, long lengthBytes, long nowNs) {
        if (trafficClass == TrafficClass.URGENT.rank()) {
            movedBytes += lengthBytes; // the others' have counted when they were given: a long write ends at once
        }
        seenNs[trafficClass] = nowNs;
        if (row != LinkBoard.NO_ROW && board.isWhole()) {
            board.setMoved(row, movedBytes);
            board.setSeen(row, trafficClass, nowNs);
        }
    }

    /** Sees what has changed, if that is due; before {@link #isContended}. */
    void look(long nowNs) {
        long tookNs = nowNs - lookedNs;
        if (!changed && tookNs < LOOK_NS) {
            return;
        }
        changed = false;
        lookedNs = nowNs;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            waiterCount[at] = waits(queuedBytes[at], seenNs[at], nowNs) ? 1 : 0;
        }
        rate.sample(movedBytes + (board.isWhole() ? exchange(nowNs) : 0), nowNs);
        decide(tookNs);
    }

    /** Shows what this worker has moved, and counts the others' waiters; returns what they have moved. */
    private long exchange(long nowNs) {
        if (row != LinkBoard.NO_ROW) {
            board.setMoved(row, movedBytes);
        }
        long othersBytes = 0;
        for (int other = 0; other < LinkBoard.ROWS; other++) {
            if (other != row && board.isOf(other, link)) {
                othersBytes += board.movedBytes(other);
                for (int at = 0; at < TrafficClass.COUNT; at++) {
                    waiterCount[at] += waits(board.queuedBytes(other, at), board.seenNs(other, at), nowNs) ? 1 : 0;
                }
            }
        }
        return othersBytes;
    }

    private static boolean waits(long lengthBytes, long lastNs, long nowNs) {
        return lengthBytes > 0 && Math.abs(nowNs - lastNs) < SILENT_LIMIT_NS;
    }

    private void decide(long tookNs) {
        int moreUrgent = 0;
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            boolean before = contended[at];
            contended[at] = moreUrgent > 0;
            if (!contended[at] || !before) {
                dueBytes[at] = 0;
            } else {
                double shareBytes = rate.bytesPerNs() * share / Math.max(1, waiterCount[at]) * tookNs;
                dueBytes[at] = Math.min(dueBytes[at] + shareBytes, (double) aheadBytes(0));
            }
            moreUrgent += waiterCount[at];
        }
    }

    /** How much a class that may have to yield gives the link in advance. */
    private long aheadBytes(long moreNs) {
        return Math.max(AHEAD_MIN_BYTES, (long) (rate.bytesPerNs() * (AHEAD_NS + moreNs)));
    }

    /** One peer's part of it: what all peers have committed is what an urgent write may wait for. */
    long aheadBytes(TrafficClass trafficClass) {
        return aheadBytes(trafficClass, 0);
    }

    /** The same, and one peer's part of what the link moves in the given time. */
    long aheadBytes(TrafficClass trafficClass, long moreNs) {
        int at = trafficClass.rank();
        return aheadBytes(moreNs) / Math.max(1, peerCount[at]) / Math.max(1, waiterCount[at]);
    }

    /** Whether the class shares the link with a more urgent one, as of the last {@link #look}. */
    boolean isContended(TrafficClass trafficClass) {
        return contended[trafficClass.rank()];
    }

    /** Bytes that the class may give to the link now; {@code Long.MAX_VALUE} if it need not yield. */
    long allowedBytes(TrafficClass trafficClass) {
        return isContended(trafficClass) ? Math.max(0, (long) dueBytes[trafficClass.rank()]) : Long.MAX_VALUE;
    }

    /** A class that may have to yield has given bytes to the link. */
    void onGiven(TrafficClass trafficClass, long lengthBytes) {
        movedBytes += lengthBytes;
        if (isContended(trafficClass)) {
            dueBytes[trafficClass.rank()] -= lengthBytes;
        }
    }

    /** Withdraws what other workers see. */
    void close() {
        if (row != LinkBoard.NO_ROW && board.isWhole() && board.isOwn(row)) {
            board.release(row);
        }
        row = LinkBoard.NO_ROW;
    }
}
