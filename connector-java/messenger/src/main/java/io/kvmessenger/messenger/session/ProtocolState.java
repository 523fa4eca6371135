package io.kvmessenger.messenger.session;

import java.util.Set;

/**
 * A state of a session or of a part of a transfer. What may follow each state is the table of its kind in
 * docs/protocol.md, with which a test compares {@link #next}.
 */
public interface ProtocolState<S extends Enum<S> & ProtocolState<S>> {
    /** The states that may follow; none after the last. */
    Set<S> next();

    /**
     * The state that follows.
     *
     * @throws IllegalStateException if it may not follow {@code from}: a bug
     */
    static <S extends Enum<S> & ProtocolState<S>> S change(S from, S to) {
        if (!from.next().contains(to)) {
            throw new IllegalStateException(from.getDeclaringClass().getName() + ": " + to + " cannot follow " + from);
        }
        return to;
    }
}
