package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * What clients and routers do that is not a fault: which ids they choose, whether they repeat requests, and what the
 * engines tell their messengers about it. Drawn from the seed independently of everything else. A value.
 *
 * @param digests whether engines compute digests of their prompts; if not, each prompt has an id of its own
 * @param idsTaken share of requests with the id of an earlier one and another prompt
 * @param askedAgain share of requests that repeat an earlier prompt under its id
 * @param rejected share of decode legs that the API server of their engine rejects
 * @param expects whether decoders announce requests that they have queued
 * @param announces whether prefillers do, and compute without waiting for a grant
 * @param contextKinds number of kinds of rows that transfers carry besides their KV
 * @param contextOnRequest how many of these go only on request of a fetch
 * @param timed whether each end must come soon after its cause, so that a request must not be ended by another one's
 *     frames
 */
record Traffic(
        boolean digests,
        double idsTaken,
        double askedAgain,
        double rejected,
        boolean expects,
        boolean announces,
        int contextKinds,
        int contextOnRequest,
        boolean timed) {
    static final Traffic PLAIN = new Traffic(false, 0, 0, 0, false, false, 0, 0, false);

    static Traffic draw(SplittableRandom random, Scenario.Weather weather, boolean announces) {
        boolean digests = random.nextInt(3) > 0 && !announces;
        double idsTaken = maybe(random, 0.5);
        double askedAgain = maybe(random, 0.3);
        double rejected = maybe(random, 0.3);
        boolean expects = random.nextBoolean();
        boolean announced = random.nextBoolean() && !announces;
        int contextKinds = Math.max(0, random.nextInt(5) - 2);
        boolean again = digests && contextKinds == 0 && weather != Scenario.Weather.SOUND;
        return new Traffic(
                digests,
                digests ? idsTaken : 0,
                again ? askedAgain : 0, // rows belong to one request, and timed ends have a single cause
                rejected,
                expects,
                announced,
                contextKinds,
                random.nextInt(contextKinds + 1),
                weather == Scenario.Weather.SOUND);
    }

    private static double maybe(SplittableRandom random, double most) {
        return random.nextBoolean() ? random.nextDouble() * most : 0;
    }
}
