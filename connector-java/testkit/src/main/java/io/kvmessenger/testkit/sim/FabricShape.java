package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * The properties of a {@link SimulatedFabric}. A value.
 *
 * @param takesAll whether links take and join as many pages as they can; otherwise each draws how many, and whether it
 *     joins them
 */
record FabricShape(FabricKind kind, Lanes lanes, Fall fall, Swarm swarm, boolean takesAll) {
    static final int PAGES_PER_POST_MAX = 8;

    int drawPagesPerPost(SplittableRandom random) {
        int drawn = 1 + random.nextInt(PAGES_PER_POST_MAX);
        return takesAll ? PAGES_PER_POST_MAX : drawn;
    }

    boolean drawJoinsPages(SplittableRandom random) {
        return random.nextBoolean() || takesAll;
    }
}
