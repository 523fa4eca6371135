package io.kvmessenger.messenger.port;

import java.util.Locale;

/** A value of the label {@code reason} that a counter is told apart by. A closed set: each is a series from the start. */
public interface CountedReason {
    /** Of the enum's constant. */
    String name();

    /** As it stands on the metrics page. */
    default String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** What it means to an operator. */
    String sentence();
}
