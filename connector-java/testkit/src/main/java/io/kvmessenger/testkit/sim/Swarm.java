package io.kvmessenger.testkit.sim;

import java.util.random.RandomGenerator;

/**
 * The kinds of faults of a run and their rates, drawn from the seed. Most are off in a given run: a run with few kinds
 * of faults gets deeper than one with all of them.
 */
record Swarm(
        double linkReset,
        double halfOpen,
        double partition,
        double pauseShort,
        double pauseLong,
        double crash,
        double pathLoss,
        double backPressure,
        double slowNode,
        double slowFabric,
        double slowNetwork,
        double prefillAbort,
        double fetchAbandon,
        double preempt,
        double preemptInStep,
        double singleLeg,
        double decoderFirst,
        double counterJump,
        double unhookedLayers,
        double stepFails,
        double enqueueFails,
        double wrongPrompt,
        double forgottenMessenger) {

    /** No faults; the counter still jumps, and prompts still come to the decoder first, which are not faults. */
    static Swarm quiet(RandomGenerator random) {
        Swarm drawn = draw(random);
        return new Swarm(
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                drawn.decoderFirst(),
                drawn.counterJump(),
                drawn.unhookedLayers(),
                0,
                0,
                0,
                0);
    }

    /** Faults of engines, clients and routers only; network, fabric and processes are sound, and nothing is slow. */
    static Swarm sound(RandomGenerator random) {
        Swarm drawn = draw(random);
        return new Swarm(
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                drawn.prefillAbort(),
                drawn.fetchAbandon(),
                drawn.preempt(),
                drawn.preemptInStep(),
                drawn.singleLeg(),
                drawn.decoderFirst(),
                drawn.counterJump(),
                drawn.unhookedLayers(),
                drawn.stepFails(),
                0,
                drawn.wrongPrompt(),
                maybe(random, 0.2));
    }

    static Swarm draw(RandomGenerator random) {
        return new Swarm(
                maybe(random, 0.6),
                maybe(random, 0.4),
                maybe(random, 0.5),
                maybe(random, 0.6),
                maybe(random, 0.4),
                maybe(random, 0.5),
                maybe(random, 0.6),
                maybe(random, 0.5),
                maybe(random, 0.5),
                maybe(random, 0.6),
                maybe(random, 0.5),
                maybe(random, 0.4),
                maybe(random, 0.5),
                maybe(random, 0.6),
                maybe(random, 0.5),
                maybe(random, 0.3),
                maybe(random, 0.6),
                maybe(random, 0.9),
                maybe(random, 0.3),
                maybe(random, 0.3),
                maybe(random, 0.3),
                maybe(random, 0.1),
                0);
    }

    private static double maybe(RandomGenerator random, double most) {
        return random.nextBoolean() ? random.nextDouble() * most : 0;
    }
}
