package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Offer;
import io.kvmessenger.messenger.wire.OfferWire;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/** Forwards events about cached prefixes, with the bug of a {@link Mutation}. */
final class MutatedOffers extends MutatedEvents {
    private final Mutation mutation;
    private final NanoClock clock;
    /** Runs an action when the limit of an offer that is made now is over, if the process still lives. */
    private final Consumer<Runnable> atOfferLimit;
    /** Offers of this engine that it holds, as it knows. */
    private final Set<String> held = new HashSet<>();
    /** Offers that the engine was given back early. */
    private final Set<String> freedEarly = new HashSet<>();
    /** Questions of this engine by their transfer, until they are late; and those that were late. */
    private final Map<String, TransferKey> asked = new HashMap<>();

    private final Map<TransferKey, String> late = new HashMap<>();
    private long lostNs = Long.MIN_VALUE;

    MutatedOffers(Mutation mutation, EngineEvents engine, NanoClock clock, Consumer<Runnable> atOfferLimit) {
        super(engine);
        this.mutation = mutation;
        this.clock = clock;
        this.atOfferLimit = atOfferLimit;
    }

    /** Receives each command before the messenger. Returns whether the messenger gets it. */
    boolean onCommand(EngineCommand command) {
        switch (command) {
            case EngineCommand.Ask ask -> asked.put(ask.request(), ask.transfer());
            case EngineCommand.Offer offer
            when offer.heldTokens() > 0 -> {
                held.add(offer.request());
                if (mutation == Mutation.RELEASED_AT_OFFER) {
                    free(offer.request());
                }
            }
            case EngineCommand.Withdraw withdraw
            when mutation == Mutation.WITHDRAWN_OFFER_GRANTED -> {
                free(withdraw.request());
                return false;
            }
            default -> {}
        }
        return true;
    }

    private void free(String request) {
        if (held.remove(request)) {
            freedEarly.add(request);
            engine.released(request);
        }
    }

    @Override
    public void released(String request) {
        boolean offered = held.remove(request);
        if (offered && mutation == Mutation.OFFER_OF_ENDED_SESSION_KEPT && lostNs == clock.nowNs()) {
            atOfferLimit.accept(() -> engine.released(request));
        } else if (!freedEarly.remove(request)) {
            engine.released(request);
        }
    }

    @Override
    public void offered(String request, int heldTokens, OfferOutcome outcome) {
        TransferKey transfer = asked.remove(request);
        if (outcome == OfferOutcome.LATE) {
            late.put(transfer, request);
        }
        engine.offered(request, heldTokens, outcome);
    }

    /** A peer's answer has arrived. */
    void onOffer(Offer offer) {
        String request = late.remove(OfferWire.transfer(offer));
        if (mutation == Mutation.LATE_OFFER_ACCEPTED && request != null && offer.getHeldTokens() > 0) {
            engine.offered(request, offer.getHeldTokens(), OfferOutcome.HELD);
        }
    }

    /** A messenger counts a lost link before it ends what the link's session had. */
    Tally tally(Tally counting) {
        return new SilentTally() {
            @Override
            public void add(MessengerMetric metric, long count) {
                counting.add(metric, count);
                if (metric == MessengerMetric.LINKS_LOST) {
                    lostNs = clock.nowNs();
                }
            }
        };
    }
}
