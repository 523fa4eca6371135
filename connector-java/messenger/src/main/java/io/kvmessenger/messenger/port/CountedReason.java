package io.kvmessenger.messenger.port;

import java.util.Locale;

/** A value of a counter's label {@code reason}. A closed set: each value is a time series from the start. */
public interface CountedReason {
    /** Name of the enum's constant. */
    String name();

    /** The label's value on the metrics page. */
    default String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    String sentence();
}
