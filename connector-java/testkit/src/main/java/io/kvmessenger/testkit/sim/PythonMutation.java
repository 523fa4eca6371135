package io.kvmessenger.testkit.sim;

/** A deliberate bug in the Python connector; {@code hosted_mutants.py} implements each under this name. */
public enum PythonMutation {
    NONE,
    /** The worker's half reports an abandoned fetch as ended as soon as it has requested the end. */
    ABORT_TAKEN_FOR_ITS_END,
    /** The scheduler's half frees the blocks of an ended prefill at once. */
    BLOCKS_FREED_WHEN_PREFILLED,
    /** A request that ended before it had blocks is not declined. */
    DECLINE_MISSING,
    /** The worker's half does not report a fetch that failed. */
    FAILURE_UNREPORTED,
    /** The workers are not told that a prefill was preempted. */
    PREEMPTION_UNTOLD,
    /** A resumed prefill continues from where it was preempted. */
    PROGRESS_KEPT,
    /** A failed load is taken for one that succeeded. */
    FAILURE_TAKEN_FOR_SUCCESS
}
