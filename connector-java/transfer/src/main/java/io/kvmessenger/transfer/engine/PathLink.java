package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;

/**
 * One path and the link that it takes: how much of which class it may be given.
 *
 * <p>What a class that may have to yield has given to the link cannot be taken back, so it gives little at once: a path
 * that can be paced keeps the rest, another one is given few bytes that have not been sent. Worker only.
 */
final class PathLink {
    /** Bytes in flight that a class which may have to yield has on a path that cannot be paced, at least. */
    static final long IN_FLIGHT_MIN_BYTES = 1 << 20;

    /** What the paced paths of a peer may hold at least: below it a worker that is late would leave the link idle. */
    static final long HELD_MIN_BYTES = 256 << 10;

    /** What each of them may hold at least: two of a kernel's largest segments. */
    static final long PATH_HELD_MIN_BYTES = 128 << 10;

    static final long SLICE_MIN_BYTES = 32 << 10;
    static final long SLICE_MAX_BYTES = 1 << 20;
    private static final int SLICES_AHEAD = 4;
    /** A path's limit is updated when it has changed by more than one part in this many. */
    private static final int LIMIT_STEPS = 8;
    /** Interval between questions for the path's round trip, which are calls of the system. */
    static final long ROUND_TRIP_LOOK_NS = 1_000_000_000L;

    private final Endpoint path;
    private final LinkLoad load;
    /** 0 = none. */
    private long unsentLimitBytes;
    /** 0 = none. */
    private long heldLimitBytes;

    private boolean roundTripAsked;
    private long roundTripAskedNs;
    private long roundTripNs;
    /** Whether the path hands over only what it may; its own bytes then count, and not those posted. */
    private boolean paced;

    PathLink(Endpoint path, LinkLoad load) {
        this.path = path;
        this.load = load;
    }

    Endpoint path() {
        return path;
    }

    LinkLoad load() {
        return load;
    }

    /**
     * Paces what the path has for a class; ends the pacing if nothing has to yield.
     *
     * @param slowest the least urgent class that the peer has writes of
     * @param mixed whether the peer has writes of a more urgent class too, which must not wait behind them
     * @param pathCount paths of the peer that share the link; 0 if a spread over several limits what waits in them: it
     *     has done so since it began
     */
    void pace(TrafficClass slowest, boolean mixed, int pathCount, long nowNs) {
        if (pathCount == 0) {
            unsentLimitBytes = 0; // the spread's now
            freeHeld();
        }
        if (slowest == TrafficClass.URGENT) {
            endPacing();
            return;
        }
        long given = path.pace(mixed ? Long.MAX_VALUE : load.allowedBytes(slowest));
        paced = given != Endpoint.UNPACED;
        if (paced) {
            load.onGiven(slowest, given);
        }
        if (paced && pathCount > 0) {
            limitUnsent(slowest, pathCount);
            limitHeld(slowest, pathCount, nowNs);
        }
    }

    private void endPacing() {
        if (paced) {
            paced = false;
            path.pace(Long.MAX_VALUE);
        }
        if (unsentLimitBytes > 0) {
            unsentLimitBytes = 0;
            path.limitUnsent(Long.MAX_VALUE);
        }
        freeHeld();
    }

    private void freeHeld() {
        if (heldLimitBytes > 0) {
            heldLimitBytes = 0;
            path.limitHeld(Long.MAX_VALUE);
        }
    }

    /** So that little waits in the path itself. */
    private void limitUnsent(TrafficClass slowest, int pathCount) {
        long bytes = Math.max(SLICE_MIN_BYTES, load.aheadBytes(slowest) / pathCount);
        if (isStep(bytes, unsentLimitBytes)) {
            unsentLimitBytes = bytes;
            path.limitUnsent(bytes);
        }
    }

    /**
     * So that little waits in the link's queue: beside what may wait, the path holds what the link moves in two round
     * trips, since one would keep a link whose rate is not known yet as slow as it seems. It has steps of its own: what
     * may wait stays at its minimum long after two round trips' worth has grown.
     */
    private void limitHeld(TrafficClass slowest, int pathCount, long nowNs) {
        if (!roundTripAsked || nowNs - roundTripAskedNs >= ROUND_TRIP_LOOK_NS) {
            roundTripAsked = true;
            roundTripAskedNs = nowNs;
            roundTripNs = path.leastRoundTripNs();
        }
        long peersBytes = Math.max(HELD_MIN_BYTES, load.aheadBytes(slowest, 2 * roundTripNs));
        long bytes = Math.max(PATH_HELD_MIN_BYTES, peersBytes / pathCount);
        if (isStep(bytes, heldLimitBytes)) {
            heldLimitBytes = bytes;
            path.limitHeld(bytes);
        }
    }

    private static boolean isStep(long nowBytes, long beforeBytes) {
        return Math.abs(nowBytes - beforeBytes) > beforeBytes / LIMIT_STEPS;
    }

    /** @param inFlightBytes of the class, at the peer */
    boolean mayPost(TrafficClass trafficClass, long inFlightBytes) {
        return trafficClass == TrafficClass.URGENT
                || (load.allowedBytes(trafficClass) > 0
                        && (paced || inFlightBytes < Math.max(IN_FLIGHT_MIN_BYTES, load.aheadBytes(trafficClass))));
    }

    void shorten(TrafficClass trafficClass, WriteBatch batch) {
        if (trafficClass != TrafficClass.URGENT) {
            long sliceBytes =
                    Math.clamp(load.aheadBytes(trafficClass) / SLICES_AHEAD, SLICE_MIN_BYTES, SLICE_MAX_BYTES);
            batch.limit(Integer.MAX_VALUE, sliceBytes, Long.MAX_VALUE);
        }
    }

    void onPosted(TrafficClass trafficClass, long lengthBytes) {
        if (!paced && trafficClass != TrafficClass.URGENT) {
            load.onGiven(trafficClass, lengthBytes);
        }
    }
}
