package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ProtocolLimits;
import java.util.List;
import java.util.SplittableRandom;

/**
 * How often the clocks of processes jump forward, as after a suspension of their machine, or processes stop, as after
 * SIGSTOP: by more than one of the limits, at one process, at all of one side, or at all. A value.
 *
 * @param periodNs mean time between two; 0 for none
 * @param stops share that is a stop of the process instead of a jump of its clock
 */
record ClockJumps(long periodNs, double stops) {
    static final ClockJumps NONE = new ClockJumps(0, 0);
    private static final int LIMITS_AT_ONCE = 10;

    static ClockJumps draw(long seed) {
        SplittableRandom random = new SplittableRandom(seed * 0xD6E8FEB86659FD93L + 3);
        return new ClockJumps((10 + random.nextInt(70)) * Scenario.MILLI, random.nextInt(3) / 2.0);
    }

    /** Longer than one of the limits, or than all of them together. */
    static long drawLengthNs(ProtocolLimits limits, SplittableRandom random) {
        List<Long> all = List.of(
                limits.heartbeatNs(),
                limits.fenceLimitNs(),
                limits.connectLimitNs(),
                limits.silenceLimitNs(),
                limits.grantWaitNs(),
                limits.fetchLimitNs(),
                LIMITS_AT_ONCE * limits.fetchLimitNs());
        long limitNs = all.get(random.nextInt(all.size()));
        return limitNs + random.nextLong(limitNs);
    }
}
