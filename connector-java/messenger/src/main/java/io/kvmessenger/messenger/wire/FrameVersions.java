package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;

/**
 * The protocol version that introduced each kind of frame: in a session that agreed on an earlier version such a frame
 * is invalid. Pure.
 */
public final class FrameVersions {
    /** Understood by sides of any version: with these frames they agree on a version, or find that they share none. */
    private static final int EVERY = 0;

    /** The version with which an engine may ask for what another one's prefix cache holds. */
    public static final int OFFERS = 11;

    /** The version with which a prefiller may divide its pages among ranks. */
    public static final int SHARES = 12;

    private FrameVersions() {}

    /** The first version with this kind of frame. A new kind gets the version that introduces it. */
    public static int since(BodyCase body) {
        return switch (body) {
            case CHALLENGE, HELLO, REFUSAL, GOODBYE, BODY_NOT_SET -> EVERY;
            // Only subjects that came later have such frames, and a build that has one of them knows the frame.
            case SUBJECT -> 10;
            case WELCOME,
                    ATTACH,
                    GRANT,
                    CANNOT_DELIVER,
                    CANCEL,
                    CANCEL_CONFIRMED,
                    HEARTBEAT,
                    DECLINE,
                    CHECKSUMS,
                    EXPECT,
                    PREFILLED,
                    REJECTED -> 10;
            case ASK, OFFER -> OFFERS;
            case SHARES -> SHARES;
        };
    }
}
