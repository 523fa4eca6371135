package io.kvmessenger.messenger.port;

/** A value of the label {@code reason} that a counter is told apart by. A closed set: each is a series from the start. */
public interface CountedReason {
    /** As it stands on the metrics page. */
    String label();

    /** What it means to an operator. */
    String sentence();
}
