package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import java.util.Optional;

/**
 * A prefiller's answer to a decoder's frame about one transfer in which a field breaks a rule: that transfer fails, the
 * session and others go on. Pure.
 */
final class InvalidFrames {
    /** Longest id that an answer repeats. A sender of a longer id is not a messenger. */
    static final int ANSWERABLE_ID_LENGTH_MAX = 64 << 10;

    private InvalidFrames() {}

    static boolean concernsOneTransfer(ControlFrame frame) {
        return switch (frame.getBodyCase()) {
            case GRANT ->
                frame.getGrant().getGrantId() > 0 && answerable(frame.getGrant().getTransferId());
            case CANCEL ->
                frame.getCancel().getGrantId() > 0
                        && answerable(frame.getCancel().getTransferId());
            case DECLINE -> answerable(frame.getDecline().getTransferId());
            case EXPECT -> answerable(frame.getExpect().getTransferId());
            case ASK -> answerable(frame.getAsk().getTransferId());
            case REJECTED -> answerable(frame.getRejected().getTransferId());
            default -> false;
        };
    }

    private static boolean answerable(String transferId) {
        return transferId.length() <= ANSWERABLE_ID_LENGTH_MAX;
    }

    /** A grant with such a field is never accepted: nothing is or will be posted for it. */
    static Optional<ControlFrame.Builder> answer(ControlFrame frame, String why) {
        return switch (frame.getBodyCase()) {
            case GRANT -> Optional.of(decline(frame.getGrant(), why));
            case CANCEL ->
                Optional.of(ControlFrame.newBuilder()
                        .setCancelConfirmed(CancelConfirmed.newBuilder()
                                .setGrantId(frame.getCancel().getGrantId())));
            default -> Optional.empty();
        };
    }

    private static ControlFrame.Builder decline(Grant grant, String why) {
        return ControlFrame.newBuilder()
                .setCannotDeliver(CannotDeliver.newBuilder()
                        .setTransferId(grant.getTransferId())
                        .setGrantId(grant.getGrantId())
                        .setReason(CannotDeliver.Reason.GRANT_UNFIT)
                        .setSentence(PeerText.oneLine(why)));
    }
}
