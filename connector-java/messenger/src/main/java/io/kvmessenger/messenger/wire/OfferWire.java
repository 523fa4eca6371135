package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;

/** Converts questions for cached prefixes, and their answers, to and from their wire form. Pure. */
public final class OfferWire {
    private OfferWire() {}

    public static TransferKey transfer(Ask ask) {
        return new TransferKey(ask.getTransferId(), ask.getPromptDigest());
    }

    public static TransferKey transfer(Offer offer) {
        return new TransferKey(offer.getTransferId(), offer.getPromptDigest());
    }

    public static Ask ask(TransferKey transfer, Prompt prompt) {
        return Ask.newBuilder()
                .setTransferId(transfer.id())
                .setPromptDigest(transfer.digest())
                .setPrompt(prompt)
                .build();
    }

    public static Offer offer(TransferKey transfer, int heldTokens, OfferOutcome outcome) {
        return Offer.newBuilder()
                .setTransferId(transfer.id())
                .setPromptDigest(transfer.digest())
                .setHeldTokens(heldTokens)
                .setReason(reason(outcome))
                .build();
    }

    private static Offer.Reason reason(OfferOutcome outcome) {
        return switch (outcome) {
            case HELD -> Offer.Reason.REASON_UNSPECIFIED;
            case NOT_HELD -> Offer.Reason.NOT_HELD;
            case MISFIT -> Offer.Reason.MISFIT;
            case UNAVAILABLE -> Offer.Reason.UNAVAILABLE;
            case BUSY, PEER_TOO_OLD, UNREACHABLE, LATE -> Offer.Reason.BUSY;
        };
    }

    /** What a peer's answer says; a reason that this build does not know counts as nothing held. */
    public static OfferOutcome outcome(Offer offer) {
        if (offer.getHeldTokens() != 0) {
            return OfferOutcome.HELD;
        }
        return switch (offer.getReason()) {
            case BUSY -> OfferOutcome.BUSY;
            case MISFIT -> OfferOutcome.MISFIT;
            case UNAVAILABLE -> OfferOutcome.UNAVAILABLE;
            case NOT_HELD, REASON_UNSPECIFIED, UNRECOGNIZED -> OfferOutcome.NOT_HELD;
        };
    }
}
