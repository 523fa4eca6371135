package io.kvmessenger.testkit.sim;

/** A bug put into the Python connector on purpose; {@code hosted_mutants.py} has them by these names. */
public enum PythonMutation {
    NONE,
    /** The worker's half reports an abandoned fetch as ended when it has asked for its end. */
    ABORT_TAKEN_FOR_ITS_END,
    /** The scheduler's half lets the blocks of an ended prefill go at once. */
    BLOCKS_FREED_WHEN_PREFILLED,
    /** A request that ended before it had blocks is not declined. */
    DECLINE_MISSING,
    /** The worker's half does not report a fetch that failed. */
    FAILURE_UNREPORTED,
    /** The workers are not told that a prefill was preempted. */
    PREEMPTION_UNTOLD,
    /** A resumed prefill goes on where it was when it was preempted. */
    PROGRESS_KEPT,
    /** A failed load is taken for one that succeeded. */
    FAILURE_TAKEN_FOR_SUCCESS
}
