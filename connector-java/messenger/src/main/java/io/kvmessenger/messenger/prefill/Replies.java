package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Prefilled;

/**
 * What a prefiller tells decoders: that a prompt they expect is computed or given up, that it cannot deliver, or that a
 * cancellation is a fact. Owned by the messenger's thread. For the last two, callers have made sure that every write for the
 * grant has completed and none will follow; how much was posted is said with it, since a completed write may still be on its
 * way.
 */
final class Replies {
    private final Sessions sessions;
    private final Tally tally;

    Replies(Sessions sessions, Tally tally) {
        this.sessions = sessions;
        this.tally = tally;
    }

    /** Says how a stopped delivery ended; nothing, if that would be a promise that cannot be kept. */
    void answer(Delivery delivery) {
        if (delivery.mayStillLand) {
            return; // any answer would say that nothing lands any more
        }
        PageGrant grant = delivery.grant;
        if (delivery.stopCode == CannotDeliver.Reason.REASON_UNSPECIFIED) {
            confirm(
                    grant.session(),
                    CancelConfirmed.newBuilder().setGrantId(grant.id()).setPostedWeight(delivery.postedWeight));
        } else {
            decline(grant, delivery.stopCode, delivery.stopReason, delivery.postedWeight);
        }
    }

    /** Of a grant for which nothing was posted. */
    void decline(PageGrant grant, CannotDeliver.Reason reason, String sentence) {
        decline(grant, reason, sentence, 0);
    }

    private void decline(PageGrant grant, CannotDeliver.Reason reason, String sentence, long postedWeight) {
        tally.add(MessengerMetric.GRANTS_DECLINED, 1);
        sessions.send(
                grant.session(),
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId(grant.transferId())
                                .setPromptDigest(grant.transfer().digest())
                                .setGrantId(grant.id())
                                .setReason(reason)
                                .setSentence(sentence)
                                .setPostedWeight(postedWeight)));
    }

    /** The engine is done with a prompt that the session expects. */
    void prefilled(Session session, TransferKey transfer) {
        sessions.send(
                session,
                ControlFrame.newBuilder()
                        .setPrefilled(Prefilled.newBuilder()
                                .setTransferId(transfer.id())
                                .setPromptDigest(transfer.digest())));
    }

    /** Of a grant that waited: nothing was posted for it. */
    void confirmUnserved(Session session, long grantId) {
        confirm(session, CancelConfirmed.newBuilder().setGrantId(grantId).setPostedWeight(0));
    }

    /** Of a grant that has been served and forgotten: all of it was posted. */
    void confirmSent(Session session, long grantId) {
        confirm(session, CancelConfirmed.newBuilder().setGrantId(grantId));
    }

    private void confirm(Session session, CancelConfirmed.Builder confirmed) {
        sessions.send(session, ControlFrame.newBuilder().setCancelConfirmed(confirmed));
    }
}
