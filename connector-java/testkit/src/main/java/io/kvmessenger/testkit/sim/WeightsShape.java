package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.weights.LandingParts;
import java.util.SplittableRandom;

/**
 * What is drawn for a run of weights beside its {@link Scenario}. A value.
 *
 * @param rankCount of each server's engine; the first has the messenger
 * @param lengthBytes of a model
 * @param otherParts those of another release, by which the model is another number of writes
 * @param oddTrainers share of trainers with another model, or of another release
 * @param refusals share of dials by which a server says that it takes nothing
 * @param mapFails share of ranks that cannot map the landing
 * @param loadFails share of ranks whose load ends half-way
 * @param callsTwice share of calls of a server that arrive twice
 * @param stepNs mean time of a part of a load
 * @param decisionLimitNs after which an engine does not wait for its messenger's answer any more
 * @param landLimitNs after which a trainer does not wait for its bytes to land any more
 * @param faultsInState share of looks at a busy process that end it, stop it, or break a link or a path
 * @param framesLost share of frames of weights that are lost with their link
 * @param damages whether writes may arrive with a bit flipped
 */
record WeightsShape(
        int trainerCount,
        int serverCount,
        int rankCount,
        int lengthBytes,
        LandingParts parts,
        LandingParts otherParts,
        double oddTrainers,
        double refusals,
        double mapFails,
        double loadFails,
        double callsTwice,
        long stepNs,
        long decisionLimitNs,
        long landLimitNs,
        double faultsInState,
        double framesLost,
        boolean damages) {
    private static final int WRITES_MAX = 40;
    private static final int PIECES_MAX = 400;
    private static final int LENGTH_MIN_BYTES = 64;
    private static final int LENGTH_MAX_BYTES = 1600;
    /** Beyond every run. */
    private static final long NEVER_NS = Long.MAX_VALUE / 4;

    static WeightsShape draw(long seed, Weather weather) {
        SplittableRandom random = new SplittableRandom(seed * 0xC6BC279692B5C323L + 1);
        boolean quiet = weather == Weather.QUIET;
        double engines = quiet ? 0 : 1;
        double world = weather == Weather.FAULTY ? 1 : 0;
        int lengthBytes = random.nextInt(LENGTH_MIN_BYTES, LENGTH_MAX_BYTES);
        int writeCount = random.nextInt(2, WRITES_MAX);
        long writeBytes = Math.ceilDiv(lengthBytes, writeCount);
        long pieceBytes = Math.ceilDiv(lengthBytes, random.nextInt(1, PIECES_MAX));
        return new WeightsShape(
                random.nextInt(1, 3),
                random.nextInt(1, 4),
                random.nextInt(1, 4),
                lengthBytes,
                new LandingParts(writeBytes, pieceBytes),
                new LandingParts(2 * writeBytes, pieceBytes),
                engines * maybe(random, 0.2),
                engines * maybe(random, 0.1),
                engines * maybe(random, 0.2),
                engines * maybe(random, 0.1),
                engines * maybe(random, 0.5),
                (1 + random.nextInt(20)) * Scenario.MILLI / 10,
                quiet ? NEVER_NS : (1 + random.nextInt(60)) * Scenario.MILLI / 4,
                weather == Weather.FAULTY ? (10 + random.nextInt(100)) * Scenario.MILLI : NEVER_NS,
                world * maybe(random, 0.02),
                world * maybe(random, 0.05),
                random.nextInt(3) == 0 && weather == Weather.FAULTY);
    }

    private static double maybe(SplittableRandom random, double most) {
        return random.nextBoolean() ? random.nextDouble() * most : 0;
    }
}
