package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * The number of domains by which each simulated process reaches its peers, and how a writer falls back from one to the
 * next. A value.
 *
 * @param domains 1, or 2
 * @param repairLimitNs how long the first may be without a lane before the next is used
 * @param restMaxNs how long a broken lane of the first stays closed, at most
 * @param swallowPeriodNs mean interval at which some lane begins to swallow its posts; 0 = never
 * @param silenceLimitNs how long a lane may report nothing about its posts; 0 = unlimited
 */
record Fall(int domains, long repairLimitNs, long restMaxNs, long swallowPeriodNs, long silenceLimitNs) {
    /** More than a post of a sound lane takes behind all others of its link. */
    private static final int SILENCE_LIMIT_MIN_MS = 4;

    static final Fall NONE = new Fall(1, Long.MAX_VALUE / 2, 0, 0, 0);

    static Fall draw(SplittableRandom random, Lanes lanes) {
        boolean falls = random.nextInt(3) == 0;
        boolean swallows = random.nextInt(3) == 0;
        long repairLimitNs = random.nextLong(4 * Scenario.MILLI);
        long restMaxNs = random.nextLong(10 * Scenario.MILLI);
        long swallowPeriodNs = (2 + random.nextInt(8)) * Scenario.MILLI;
        long silenceLimitNs = (SILENCE_LIMIT_MIN_MS + random.nextInt(4)) * Scenario.MILLI;
        if (!falls && !(swallows && lanes.several())) {
            return NONE;
        }
        return new Fall(
                falls ? 2 : 1,
                falls ? repairLimitNs : NONE.repairLimitNs,
                falls ? restMaxNs : 0,
                swallows && lanes.several() ? swallowPeriodNs : 0,
                silenceLimitNs);
    }

    /** Whether workers have time limits to observe. */
    boolean hasLimits() {
        return !equals(NONE);
    }
}
