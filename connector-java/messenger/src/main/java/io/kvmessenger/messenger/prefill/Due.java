package io.kvmessenger.messenger.prefill;

/** What waits in {@link Meetings} until a deadline. */
sealed interface Due permits Prefill, PageGrant, Announcement, Meeting {
    int KINDS = 4;

    /**
     * The order in which kinds are looked at that are due at once: legs that contradict each other are found before a
     * grant among them is late.
     */
    default int rank() {
        return switch (this) {
            case Prefill prefill -> 0;
            case Announcement announcement -> 1;
            case Meeting meeting -> 2;
            case PageGrant grant -> 3;
        };
    }
}
