package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ProtocolLimits;

/**
 * What a run has beside the faults of its {@link Swarm}, if it is asked for: no seed has any of it by itself, so a
 * stored seed keeps its meaning. A value.
 *
 * @param decodersKept beyond so many, decoders with nothing under way are asked to leave
 * @param dividesPages whether a prefiller's ranks divide the pages of latent KV, where the seed draws such a model
 */
record Hardships(PortFaults ports, ClockJumps jumps, Pulls pulls, int decodersKept, boolean dividesPages) {
    static final Hardships NONE =
            new Hardships(PortFaults.NONE, ClockJumps.NONE, Pulls.NONE, ProtocolLimits.DECODERS_KEPT, false);
    /** More of them than that are asked to leave as soon as they have nothing under way. */
    private static final int KEPT_MAX = 2;

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
        PULLS_AND_CLOCKS,
        /** Decoders with nothing under way are asked to leave, and dial again. */
        IDLE,
        IDLE_AND_PULLS,
        IDLE_AND_PORTS,
        IDLE_AND_CLOCKS,
        /** Each page is on one of a prefiller's ranks. */
        DIVIDED,
        DIVIDED_AND_PORTS,
        DIVIDED_AND_CLOCKS;

        Hardships draw(long seed) {
            return new Hardships(
                    ports() ? PortFaults.draw(seed) : PortFaults.NONE,
                    jumps() ? ClockJumps.draw(seed) : ClockJumps.NONE,
                    pulls() ? Pulls.draw(seed) : Pulls.NONE,
                    idle() ? (int) (seed % KEPT_MAX) : ProtocolLimits.DECODERS_KEPT,
                    this == DIVIDED || this == DIVIDED_AND_PORTS || this == DIVIDED_AND_CLOCKS);
        }

        private boolean pulls() {
            return switch (this) {
                case NONE, PORTS, CLOCKS, IDLE, IDLE_AND_PORTS, IDLE_AND_CLOCKS -> false;
                case DIVIDED, DIVIDED_AND_PORTS, DIVIDED_AND_CLOCKS -> false;
                case PULLS, PULLS_AND_PORTS, PULLS_AND_CLOCKS, IDLE_AND_PULLS -> true;
            };
        }

        private boolean ports() {
            return this == PORTS || this == PULLS_AND_PORTS || this == IDLE_AND_PORTS || this == DIVIDED_AND_PORTS;
        }

        private boolean jumps() {
            return this == CLOCKS || this == PULLS_AND_CLOCKS || this == IDLE_AND_CLOCKS || this == DIVIDED_AND_CLOCKS;
        }

        private boolean idle() {
            return this == IDLE || this == IDLE_AND_PULLS || this == IDLE_AND_PORTS || this == IDLE_AND_CLOCKS;
        }
    }
}
