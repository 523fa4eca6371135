package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * What clients and routers do that is no fault: which ids they choose, whether they ask again, and what the engines around the
 * messengers tell of it. Drawn from the seed apart from all else. A value.
 *
 * @param digests whether engines make digests of their prompts; without, each prompt has an id of its own
 * @param idsTaken how many requests have the id of an earlier one, with another prompt
 * @param askedAgain how many requests ask for an earlier prompt under its id once more
 * @param rejected how many decode legs are rejected by the API server of their engine
 * @param expects whether decoders tell of a request that they have queued
 * @param announces whether prefillers do, and compute without waiting for a grant
 * @param contextKinds kinds of rows that go with transfers beside their KV
 * @param contextOnRequest how many of them go with those only whose fetch asks for them
 * @param timed whether each end is held to a bound after its cause, so that a request must not be ended by another's words
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
                again ? askedAgain : 0, // rows are one request's, and where ends are timed each has one cause
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
