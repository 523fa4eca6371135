package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * The number of lanes of each simulated data path, and how often one breaks. With several lanes a write completes when
 * its target has confirmed it, and writes of a broken lane that were not taken are posted again. A value.
 *
 * @param breakPeriodNs mean interval at which one of all lanes breaks; 0 = never
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
