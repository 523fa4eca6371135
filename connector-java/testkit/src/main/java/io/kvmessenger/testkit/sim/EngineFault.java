package io.kvmessenger.testkit.sim;

/** A bug of a {@link SimulatedServer}'s engine or of a {@link SimulatedTrainer}, to show that checkers detect it. */
public enum EngineFault {
    NONE,
    /** The engine loads whatever its messenger has decided. */
    LOADED_UNDECIDED,
    /** A rank that cannot map the landing is left out, and the others load. */
    RANK_LEFT_OUT,
    /** An engine of which one rank has loaded half goes on. */
    TORN_ENGINE_GOES_ON,
    /** A load is reported as complete when its first rank has loaded. */
    REPORTED_WITH_FIRST_RANK,
    /** The answer to an earlier question about an update, which was not waited for, is taken for that to the next one. */
    STALE_DECISION,
    /** A trainer changes its memory when its limit is over, while writes read it. */
    MEMORY_CHANGED_EARLY
}
