package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Prefilled;

/**
 * What a prefiller tells decoders: that a prompt they expect is computed or given up, that it cannot deliver, or that a
 * cancellation is a fact. Owned by the messenger's thread. For the last two, callers have made sure that no write for the grant
 * is posted and none will follow.
 */
final class Replies {
    private final Sessions sessions;
    private final Tally tally;

    Replies(Sessions sessions, Tally tally) {
        this.sessions = sessions;
        this.tally = tally;
    }

    /** Says how a stopped delivery ended; nothing, if that would be a promise that nobody can make. */
    void answer(Delivery delivery) {
        if (delivery.mayStillLand) {
            return; // any answer would say that nothing lands any more
        }
        PageGrant grant = delivery.grant;
        if (delivery.stopCode == CannotDeliver.Reason.REASON_UNSPECIFIED) {
            confirm(grant.session(), grant.transferId(), grant.imm());
        } else {
            decline(grant, delivery.stopCode, delivery.stopReason);
        }
    }

    void decline(PageGrant grant, CannotDeliver.Reason reason, String sentence) {
        tally.add(MessengerMetric.GRANTS_DECLINED, 1);
        sessions.send(
                grant.session(),
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId(grant.transferId())
                                .setImm(grant.imm())
                                .setReason(reason)
                                .setSentence(sentence)));
    }

    /** The engine is done with a prompt that the session expects. */
    void prefilled(Session session, String transferId) {
        sessions.send(
                session,
                ControlFrame.newBuilder().setPrefilled(Prefilled.newBuilder().setTransferId(transferId)));
    }

    void confirm(Session session, String transferId, int imm) {
        sessions.send(
                session,
                ControlFrame.newBuilder()
                        .setCancelConfirmed(CancelConfirmed.newBuilder()
                                .setTransferId(transferId)
                                .setImm(imm)));
    }
}
