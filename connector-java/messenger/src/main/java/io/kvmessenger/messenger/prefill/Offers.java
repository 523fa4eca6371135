package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.Optional;

/**
 * The engine's answers to peers' questions: what it offers is a prefill that is computed and ended, and that only the
 * engine which asked may grant. Each messenger of the offering engine has its part of the pages; one of them was asked.
 *
 * <p>Owned by the messenger's thread. It adds no end of its own: {@link Prefiller} ends an offer like any prefill, by its
 * grant, a decline, its limit or its session.
 */
public final class Offers {
    private final Prefiller prefiller;
    private final PeerAsks asks;
    private final EngineEvents engine;

    public Offers(Prefiller prefiller, EngineEvents engine) {
        this.prefiller = prefiller;
        this.asks = prefiller.asks;
        this.engine = engine;
    }

    /** The engine answers a question. Pages that it offers are released when no peer wants them any more. */
    public void offer(EngineCommand.Offer offer, long nowNs) {
        Optional<DecoderSession> asker = asks.asker(offer.transfer());
        if (asker.isPresent()) {
            OfferOutcome outcome = answer(offer, asker.get(), nowNs);
            int heldTokens = outcome == OfferOutcome.HELD ? offer.heldTokens() : 0;
            asks.answer(asker.get(), offer.transfer(), heldTokens, outcome);
            asks.end(offer.transfer()); // last: a question whose answer meets a bug is still open
        } else if (!offer.asked() && !prefiller.decoderFrames.hasOffered(offer.transfer())) {
            begin(offer, null, nowNs);
        } else {
            prefiller.decoderFrames.forgetDismissed(offer.transfer());
            if (offer.heldTokens() > 0) {
                engine.released(offer.request()); // its asker is gone, or has had an earlier answer
            }
        }
    }

    private OfferOutcome answer(EngineCommand.Offer offer, DecoderSession asker, long nowNs) {
        if (offer.asked()) {
            return offer.heldTokens() == 0 ? offer.outcome() : begin(offer, asker, nowNs);
        }
        engine.released(offer.request()); // the messenger that is to be asked has offered its part to no engine
        return OfferOutcome.MISFIT;
    }

    private OfferOutcome begin(EngineCommand.Offer offer, DecoderSession asker, long nowNs) {
        Prefill prefill = prefiller.start(offer.request(), offer.transfer());
        if (prefill != null) {
            prefill.offerTo(asker);
            prefiller.computed(offer.chunk(), nowNs);
            prefiller.decoderFrames.match(prefill);
        }
        prefiller.prefillEnded(offer.end(), nowNs); // releases also what was not begun
        return prefill != null && prefill.awaitsGrants() ? OfferOutcome.HELD : OfferOutcome.MISFIT;
    }

    /** The answer could not be handled: its pages are released all the same. */
    public void endBroken(EngineCommand.Offer offer, long nowNs) {
        asks.answerBusy(offer.transfer());
        if (offer.heldTokens() > 0) {
            prefiller.prefillEnded(offer.end(), nowNs); // first: it releases what it does not know
            withdraw(offer.request());
        }
    }

    /** The engine wants its offered pages back. A grant that has come is still served. */
    public void withdraw(String request) {
        Prefill offer = prefiller.prefills.of(request);
        if (offer != null && offer.isOffer() && offer.deliveries.isEmpty()) {
            offer.stop(new Stop(Reason.EXPIRED, "the engine has taken back what it offered"));
            prefiller.ends.settle(offer);
        }
    }

    /** Pages that are kept for other engines. */
    public int pageCount() {
        return prefiller.prefills.offeredPageCount();
    }

    /** Peers' questions that the engine has not answered. */
    public int openAskCount() {
        return asks.count();
    }
}
