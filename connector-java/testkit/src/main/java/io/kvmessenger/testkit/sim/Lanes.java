package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * How many lanes each simulated data path has, and how often one of them breaks. With several a write is sent when its target
 * has said that it took it, and what a broken lane had and its target did not take is posted again. A value.
 *
 * @param breakPeriodNs one of all lanes breaks about that often; 0 = none ever does
 */
record Lanes(int count, long breakPeriodNs) {
    static final Lanes ONE = new Lanes(1, 0);

    static Lanes draw(SplittableRandom random, FabricKind fabric) {
        int count = random.nextBoolean() ? 1 : 2 + random.nextInt(2);
        long periodNs = (1 + random.nextInt(6)) * Scenario.MILLI;
        return count == 1 || fabric.writerCopies() ? ONE : new Lanes(count, periodNs);
    }

    boolean several() {
        return count > 1;
    }
}
