package io.kvmessenger.transfer;

/** What a transfer engine counts, since it was opened or, where it says so, now. */
public enum TransferCounter {
    /** Handed to a path; what a lost path had counts again. */
    BYTES_SENT,
    /** By transports whose receiver handles each byte, {@code tcp} and what is staged: one-sided writes pass it by. */
    BYTES_RECEIVED,
    PAGES_SENT,
    /** As {@link #BYTES_RECEIVED}. */
    PAGES_RECEIVED,
    /** Writes that left: pages that follow each other on both sides are one write. */
    WRITES_SENT,
    /** What the weights of these writes say beyond one each. */
    WRITES_SAVED,
    WRITES_REFUSED,
    /** Parts of requests that a lost path had and that were posted to another. */
    WRITES_REPEATED,
    /** Immediates that named no open window. */
    STRAYS,
    BACK_PRESSURED,
    PATHS_OPENED,
    PATHS_LOST,
    /** Sockets closed before they became a path: garbage, another version, a wrong key, too slow. */
    PATHS_REJECTED,
    /** Now. */
    WINDOWS_OPEN,
    /** Now. */
    REGIONS_OPEN,
    /** Now. */
    REQUESTS_IN_FLIGHT
}
