package io.kvmessenger.transfer.path;

import java.util.function.IntPredicate;

/**
 * The region that a writer has requested from its peer. One request at a time: nothing is posted until the peer has
 * answered. Worker only.
 */
public final class WantedRegion {
    public static final int NONE = 0;

    private final IntPredicate ask;
    private int regionId;
    private boolean waiting;

    /** @param ask sends the request for a region, if there is room for it now */
    public WantedRegion(IntPredicate ask) {
        this.ask = ask;
    }

    public void want(int wantedId) {
        regionId = wantedId;
        waiting = ask.test(wantedId);
    }

    /** Whether an answer of the peer is pending. */
    public boolean isWaiting() {
        return waiting;
    }

    /** @throws IllegalArgumentException when an answer about this region is not pending */
    public void onAnswer(int answeredId) {
        if (!waiting || answeredId != regionId) {
            throw new IllegalArgumentException("the peer sent a region that was not asked for");
        }
        waiting = false;
    }
}
