package io.kvmessenger.transfer.tcp;

/**
 * When to report to a peer which frames of its data sockets were taken: rarely while frames keep arriving, promptly
 * when they stop.
 *
 * <p>Each report costs both sides a system call, and a sleeping writer a wake-up. But a writer with few writes in
 * flight waits for it: its frames arrive close together and then stop, which shows in their spacing. Frames of a
 * ping-pong arrive at an even spacing, and are reported in groups. Worker only.
 */
final class ProgressPace {
    /** Frames after which a report is due: far fewer than an engine has in flight to one peer. */
    static final int FRAMES_MAX = 32;

    static final long BYTES_MAX = 512 << 10;
    /** Longest time before a report, during which the sources of the writes stay reserved. */
    static final long AGE_MAX_NS = 2_000_000;
    /** Frames count as stopped after this many times the last spacing. */
    static final int STOPPED_FACTOR = 4;

    private long frames;
    private long oldestNs;
    private long lastNs;
    private long gapNs = AGE_MAX_NS;

    /**
     * Whether a report is due.
     *
     * @param unreportedFrames frames taken and not reported, at least one
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

    /** Everything has been reported, or there is nothing to report. */
    void onReported() {
        frames = 0;
    }
}
