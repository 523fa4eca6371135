package io.kvmessenger.transfer.tcp;

/**
 * When a peer is to be told what was taken of its data sockets: seldom while frames keep coming, soon when they stop.
 *
 * <p>Each telling costs both sides a system call, and a sleeping writer a wake-up. A writer that keeps few writes under way waits
 * for the telling, though: its frames come close together and then stop, which is noticed by their distance. Frames to and fro
 * come as far apart as they ever were, and are told together. Worker only.
 */
final class ProgressPace {
    /** So many frames are told at once: far fewer than an engine has under way to one peer. */
    static final int FRAMES_MAX = 32;

    static final long BYTES_MAX = 512 << 10;
    /** The source of a write stays reserved for as long, at most. */
    static final long AGE_MAX_NS = 2_000_000;
    /** Frames have stopped when so many times the last distance between two has passed. */
    static final int STOPPED_FACTOR = 4;

    private long frames;
    private long oldestNs;
    private long lastNs;
    private long gapNs = AGE_MAX_NS;

    /**
     * Whether it is time.
     *
     * @param unreportedFrames taken and not told, at least one
     */
    boolean isDue(long unreportedFrames, long unreportedBytes, long nowNs) {
        if (unreportedFrames != frames) {
            gapNs = unreportedFrames - frames == 1 ? Math.min(nowNs - lastNs, AGE_MAX_NS) : 0;
            lastNs = nowNs;
            if (frames == 0) {
                oldestNs = nowNs;
            }
            frames = unreportedFrames;
        }
        return unreportedFrames >= FRAMES_MAX
                || unreportedBytes >= BYTES_MAX
                || nowNs - oldestNs >= AGE_MAX_NS
                || nowNs - lastNs > STOPPED_FACTOR * gapNs;
    }

    /** The peer has been told everything, or there is nothing. */
    void onTold() {
        frames = 0;
    }
}
