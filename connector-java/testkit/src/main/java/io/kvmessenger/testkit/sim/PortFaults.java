package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * How often calls of a messenger's ports fail while a run has faults, each as a share of the calls. Drawn from a stream
 * of the seed of its own. A value.
 *
 * @param queueFull submits that find their peer's queue full
 * @param submitThrows submits that throw
 * @param slotsTaken windows for which there is no slot
 * @param windowThrows windows whose opening throws
 * @param allowThrows allowances of a peer's window that throw
 * @param peerThrows admissions of a peer, and connections to one, that throw
 * @param postThrows posts that throw in a transport, below the transfer engine
 * @param dialRefused control links that are refused although a process listens
 * @param sendFull frames for which their link has no room, which ends the link
 */
record PortFaults(
        double queueFull,
        double submitThrows,
        double slotsTaken,
        double windowThrows,
        double allowThrows,
        double peerThrows,
        double postThrows,
        double dialRefused,
        double sendFull) {
    static final PortFaults NONE = new PortFaults(0, 0, 0, 0, 0, 0, 0, 0, 0);

    static PortFaults draw(long seed) {
        SplittableRandom random = new SplittableRandom(seed * 0xBF58476D1CE4E5B9L + 1);
        return new PortFaults(
                maybe(random, 0.5),
                maybe(random, 0.05),
                maybe(random, 0.3),
                maybe(random, 0.1),
                maybe(random, 0.1),
                maybe(random, 0.2),
                maybe(random, 0.05),
                maybe(random, 0.5),
                maybe(random, 0.02));
    }

    boolean any() {
        return !equals(NONE);
    }

    private static double maybe(SplittableRandom random, double most) {
        return random.nextBoolean() ? random.nextDouble() * most : 0;
    }
}
