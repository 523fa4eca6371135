package io.kvmessenger.testkit.sim.check;

import static io.kvmessenger.testkit.sim.check.FetchEnd.ABSENT;
import static io.kvmessenger.testkit.sim.check.FetchEnd.ARRIVED;
import static io.kvmessenger.testkit.sim.check.FetchEnd.CANCELLED;
import static io.kvmessenger.testkit.sim.check.FetchEnd.DIED;
import static io.kvmessenger.testkit.sim.check.FetchEnd.FAILED;

import java.util.EnumMap;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

/**
 * Which ends of the two sides are compatible: the table of docs/protocol.md as data. A test compares the two.
 *
 * <p>A transfer whose prefill had several attempts is judged by the most permissive attempt.
 */
public final class AllowedEnds {
    private static final Map<PrefillEnd, Set<FetchEnd>> ALLOWED = new EnumMap<>(PrefillEnd.class);

    static {
        ALLOWED.put(PrefillEnd.SENT, EnumSet.of(ARRIVED, FAILED, CANCELLED, DIED));
        ALLOWED.put(PrefillEnd.CANCELLED, EnumSet.of(FAILED, CANCELLED, DIED));
        ALLOWED.put(PrefillEnd.PREEMPTED, EnumSet.allOf(FetchEnd.class));
        ALLOWED.put(PrefillEnd.UNDELIVERED, EnumSet.of(ARRIVED, FAILED, CANCELLED, DIED));
        ALLOWED.put(PrefillEnd.LOST, EnumSet.of(ARRIVED, FAILED, CANCELLED, DIED));
        ALLOWED.put(PrefillEnd.EXPIRED, EnumSet.of(FAILED, CANCELLED, DIED, ABSENT));
        ALLOWED.put(PrefillEnd.DIED, EnumSet.allOf(FetchEnd.class));
        ALLOWED.put(PrefillEnd.ABSENT, EnumSet.of(FAILED, CANCELLED, DIED, ABSENT));
    }

    private AllowedEnds() {}

    public static Set<FetchEnd> with(PrefillEnd end) {
        return ALLOWED.get(end);
    }
}
