package io.kvmessenger.testkit.sim.check;

/** How one attempt of a prefill ended, as observed from outside. */
public enum PrefillEnd {
    /** Everything has left. */
    SENT,
    /** The decoder's cancel was confirmed. */
    CANCELLED,
    /** The engine preempted it; another attempt may follow. */
    PREEMPTED,
    /** The decoder was told that it cannot be delivered: aborted, path lost. */
    UNDELIVERED,
    /** The session ended first: there was no decoder to tell. */
    LOST,
    /** No grant that could be served came within the limit, or the decoder declined the transfer. */
    EXPIRED,
    /** The process died. */
    DIED,
    /** The prefiller never computed anything for this transfer. */
    ABSENT
}
