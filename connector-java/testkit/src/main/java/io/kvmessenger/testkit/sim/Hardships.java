package io.kvmessenger.testkit.sim;

/**
 * What a run has beside the faults of its {@link Swarm}, if it is asked for: no seed has any of it by itself, so a
 * stored seed keeps its meaning. A value.
 */
record Hardships(PortFaults ports, ClockJumps jumps, Pulls pulls) {
    static final Hardships NONE = new Hardships(PortFaults.NONE, ClockJumps.NONE, Pulls.NONE);

    /** Which of them a run has. */
    enum Kind {
        NONE,
        /** Calls of ports are refused and throw. */
        PORTS,
        /** Clocks jump, and processes stop for longer than any limit. */
        CLOCKS,
        /** Engines ask each other for cached prefixes. */
        PULLS,
        PULLS_AND_PORTS,
        PULLS_AND_CLOCKS;

        Hardships draw(long seed) {
            return new Hardships(
                    this == PORTS || this == PULLS_AND_PORTS ? PortFaults.draw(seed) : PortFaults.NONE,
                    this == CLOCKS || this == PULLS_AND_CLOCKS ? ClockJumps.draw(seed) : ClockJumps.NONE,
                    pulls() ? Pulls.draw(seed) : Pulls.NONE);
        }

        private boolean pulls() {
            return switch (this) {
                case NONE, PORTS, CLOCKS -> false;
                case PULLS, PULLS_AND_PORTS, PULLS_AND_CLOCKS -> true;
            };
        }
    }
}
