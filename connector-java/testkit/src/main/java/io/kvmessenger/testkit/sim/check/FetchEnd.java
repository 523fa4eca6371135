package io.kvmessenger.testkit.sim.check;

/** How a fetch ended, as observed from outside. */
public enum FetchEnd {
    /** All pages hold their KV. */
    ARRIVED,
    /** It ended without its KV. */
    FAILED,
    /** The engine had given it up. */
    CANCELLED,
    /** The process died. */
    DIED,
    /** The decoder never asked. */
    ABSENT
}
