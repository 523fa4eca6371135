package io.kvmessenger.messenger.prefill;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.OfferWire;
import io.kvmessenger.messenger.wire.Prefilled;
import io.kvmessenger.messenger.wire.Shares;
import java.util.BitSet;
import java.util.List;

/**
 * Sends a prefiller's replies to decoders: that an expected prompt is computed or given up, that a transfer cannot be
 * delivered, or that a cancellation is confirmed. For the last two, callers ensure that every write for the grant has
 * completed and none will follow. These replies carry the posted weight, since a completed write may not have landed
 * yet. Owned by the messenger's thread.
 */
final class Replies {
    private final Sessions sessions;
    private final Tally tally;

    Replies(Sessions sessions, Tally tally) {
        this.sessions = sessions;
        this.tally = tally;
    }

    /** Sends how a stopped delivery ended; nothing, if the reply would be a promise that cannot be kept. */
    void answer(Delivery delivery) {
        if (delivery.mayStillLand) {
            return; // any reply would assert that nothing lands any more
        }
        PageGrant grant = delivery.grant;
        if (delivery.stop().reason() == CannotDeliver.Reason.REASON_UNSPECIFIED) {
            confirm(
                    grant.session(),
                    CancelConfirmed.newBuilder().setGrantId(grant.id()).setPostedWeight(delivery.postedWeight));
        } else {
            decline(grant, delivery.stop().reason(), delivery.stop().sentence(), delivery.postedWeight);
        }
    }

    /** Says which of the granted pages each rank of this side has, for each group of divided pages. */
    void shares(PageGrant grant, List<BitSet> ofRanks) {
        Shares.Builder shares = Shares.newBuilder().setGrantId(grant.id());
        ofRanks.forEach(pages -> shares.addPages(ByteString.copyFrom(pages.toByteArray())));
        sessions.send(grant.session(), ControlFrame.newBuilder().setShares(shares));
    }

    /** Declines a grant for which nothing was posted. */
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

    /** Answers a session's question for a cached prefix. */
    void offer(DecoderSession session, TransferKey transfer, int heldTokens, OfferOutcome outcome) {
        sessions.send(session, ControlFrame.newBuilder().setOffer(OfferWire.offer(transfer, heldTokens, outcome)));
    }

    /** Tells a session that the engine is done with a prompt that it expects. */
    void prefilled(DecoderSession session, TransferKey transfer) {
        sessions.send(
                session,
                ControlFrame.newBuilder()
                        .setPrefilled(Prefilled.newBuilder()
                                .setTransferId(transfer.id())
                                .setPromptDigest(transfer.digest())));
    }

    /** Confirms the cancel of a waiting grant, for which nothing was posted. */
    void confirmUnserved(DecoderSession session, long grantId) {
        confirm(session, CancelConfirmed.newBuilder().setGrantId(grantId).setPostedWeight(0));
    }

    /** Confirms the cancel of a grant that has been served completely and forgotten. */
    void confirmSent(DecoderSession session, long grantId) {
        confirm(session, CancelConfirmed.newBuilder().setGrantId(grantId));
    }

    private void confirm(DecoderSession session, CancelConfirmed.Builder confirmed) {
        sessions.send(session, ControlFrame.newBuilder().setCancelConfirmed(confirmed));
    }
}
