package io.kvmessenger.weights;

import io.kvmessenger.messenger.session.ProtocolState;
import java.util.EnumSet;
import java.util.Set;

/** The states of a host's landing; the table of docs/weights.md. */
public enum LandingState implements ProtocolState<LandingState> {
    /** Its bytes mean nothing, and nothing can land. */
    EMPTY,
    /** A sender's writes land. */
    GROUND,
    /** Everything has landed and been counted; its digest is being computed. */
    COMPARING,
    /** The bytes are those that were announced: the engine may load them. */
    LANDED,
    /** The engine is loading them. */
    APPLYING,
    /** The engine serves them. */
    HELD,
    /** The sender is gone or gave up, and what it posted may still land. */
    QUARANTINED;

    @Override
    public Set<LandingState> next() {
        return switch (this) {
            case EMPTY -> EnumSet.of(GROUND);
            case GROUND -> EnumSet.of(COMPARING, QUARANTINED);
            case COMPARING -> EnumSet.of(LANDED, EMPTY);
            case LANDED -> EnumSet.of(APPLYING, GROUND);
            case APPLYING -> EnumSet.of(HELD, EMPTY);
            case HELD -> EnumSet.of(GROUND);
            case QUARANTINED -> EnumSet.of(EMPTY);
        };
    }
}
