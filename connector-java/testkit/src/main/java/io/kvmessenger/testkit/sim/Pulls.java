package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * How often engines ask each other for what their prefix caches hold, and what goes wrong with it. Drawn from a stream of
 * the seed of its own. A value.
 *
 * @param periodNs mean time between two questions of an engine; 0 for none
 * @param resetPeriodNs mean time between two resets of a prefix cache, which take all offers back
 * @param giveUps share of questions, offers and fetches that the asking engine gives up
 * @param refusals share of questions that the asked engine answers with nothing
 * @param oddAnswers share of answers that are lost, late, doubled or refused by the engine's API
 * @param olderBuilds share of engines whose build knows no questions
 */
record Pulls(
        long periodNs, long resetPeriodNs, double giveUps, double refusals, double oddAnswers, double olderBuilds) {
    static final Pulls NONE = new Pulls(0, 0, 0, 0, 0, 0);

    /** How long an offer waits for its grant: well above {@code BoundChecker.BOUND_NS}, so that an early end shows. */
    static final long OFFER_LIMIT_NS = 60 * Scenario.MILLI;

    static Pulls draw(long seed) {
        SplittableRandom random = new SplittableRandom(seed * 0x94D049BB133111EBL + 1);
        return new Pulls(
                (8 + random.nextInt(50)) * Scenario.MILLI,
                (10 + random.nextInt(100)) * Scenario.MILLI,
                maybe(random, 0.5),
                maybe(random, 0.4),
                maybe(random, 0.4),
                maybe(random, 0.3));
    }

    boolean any() {
        return periodNs > 0;
    }

    /** Whether every incarnation of the engine is of a build that knows no questions. */
    boolean isOlder(String engine, long seed) {
        return new SplittableRandom(seed * 0xBF58476D1CE4E5B9L + engine.hashCode()).nextDouble() < olderBuilds;
    }

    private static double maybe(SplittableRandom random, double most) {
        return random.nextBoolean() ? random.nextDouble() * most : 0;
    }
}
