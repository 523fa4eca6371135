package io.kvmessenger.weights;

import io.kvmessenger.messenger.session.ProtocolState;
import java.util.EnumSet;
import java.util.Set;

/** The states of one update for one host, on the sender's side; the table of docs/weights.md. */
public enum DeliveryState implements ProtocolState<DeliveryState> {
    /** The host was told of the version, and no byte has left. */
    ANNOUNCED,
    /** The host's landing is this sender's: writes are posted. */
    WRITING,
    /** The host has all of it, with the announced digest. */
    LANDED,
    /** The host's engine serves it. */
    APPLIED,
    /** The host serves what it served before, or is lost. */
    ENDED;

    @Override
    public Set<DeliveryState> next() {
        return switch (this) {
            case ANNOUNCED -> EnumSet.of(WRITING, ENDED);
            case WRITING -> EnumSet.of(LANDED, ENDED);
            case LANDED -> EnumSet.of(APPLIED, ENDED);
            case APPLIED, ENDED -> EnumSet.noneOf(DeliveryState.class);
        };
    }

    /** Whether bytes leave, or will. */
    boolean writes() {
        return this == ANNOUNCED || this == WRITING;
    }

    /** Whether nothing follows. */
    boolean last() {
        return next().isEmpty();
    }
}
