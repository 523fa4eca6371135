package io.kvmessenger.testkit.sim;

/**
 * What a run has beside the faults of its {@link Swarm}, if it is asked for: no seed has any of it by itself, so a
 * stored seed keeps its meaning. A value.
 */
record Hardships(PortFaults ports, ClockJumps jumps) {
    static final Hardships NONE = new Hardships(PortFaults.NONE, ClockJumps.NONE);

    /** Which of them a run has. */
    enum Kind {
        NONE,
        /** Calls of ports are refused and throw. */
        PORTS,
        /** Clocks jump, and processes stop for longer than any limit. */
        CLOCKS;

        Hardships draw(long seed) {
            return switch (this) {
                case NONE -> Hardships.NONE;
                case PORTS -> new Hardships(PortFaults.draw(seed), ClockJumps.NONE);
                case CLOCKS -> new Hardships(PortFaults.NONE, ClockJumps.draw(seed));
            };
        }
    }
}
