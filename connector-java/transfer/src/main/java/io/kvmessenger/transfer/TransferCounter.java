package io.kvmessenger.transfer;

/** What a transfer engine counts: totals since it was opened, or current values where noted. */
public enum TransferCounter {
    /** Bytes handed to a path; those posted again after the loss of a path count again. */
    BYTES_SENT,
    /** Only of transports whose receiver handles the bytes, {@code tcp} and staged ones; one-sided writes bypass it. */
    BYTES_RECEIVED,
    PAGES_SENT,
    /** As {@link #BYTES_RECEIVED}. */
    PAGES_RECEIVED,
    /** Writes that have left; pages that are contiguous on both sides form one write. */
    WRITES_SENT,
    /** Writes avoided by merging pages: the sum of the weights of all writes, less their number. */
    WRITES_SAVED,
    /** Runs of bytes that a device's kernel copied, rather than its copy engine; part of a page, or several pages. */
    RUNS_BY_KERNEL,
    WRITES_REFUSED,
    /** Parts of requests that were posted again after the loss of their path. */
    WRITES_REPEATED,
    /** Immediates that named no open window. */
    STRAYS,
    BACK_PRESSURED,
    PATHS_OPENED,
    PATHS_LOST,
    /** Sockets closed before they became a path: malformed input, another version, a wrong key, or too slow. */
    PATHS_REJECTED,
    /** Current value. */
    WINDOWS_OPEN,
    /** Current value. */
    REGIONS_OPEN,
    /** Current value. */
    REQUESTS_IN_FLIGHT
}
