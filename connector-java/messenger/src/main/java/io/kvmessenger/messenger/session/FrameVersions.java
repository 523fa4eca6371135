package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;

/**
 * Since which version of the protocol a kind of frame may be sent: in a session that has agreed upon an earlier one it is out of
 * place. Pure. What frames hold is {@link FrameRules}'.
 */
final class FrameVersions {
    /** What two sides of any versions understand: by these they agree upon one, or say that there is none. */
    private static final int EVERY = 0;

    private FrameVersions() {}

    /** A kind that is added here gets the version that it was added with. */
    static int since(BodyCase body) {
        return switch (body) {
            case CHALLENGE, HELLO, REFUSAL, GOODBYE, BODY_NOT_SET -> EVERY;
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
        };
    }
}
