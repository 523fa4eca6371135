package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * What an engine answers to peers' questions for its prefix cache: in time, late, twice or never. What it offers it holds
 * until its messenger releases it, also after it has taken the offer back. One thread.
 */
final class SimulatedSource {
    private static final long ANSWERED_WITHIN_NS = 2 * Scenario.MILLI;
    private static final List<OfferOutcome> REASONS =
            List.of(OfferOutcome.NOT_HELD, OfferOutcome.BUSY, OfferOutcome.MISFIT, OfferOutcome.UNAVAILABLE);

    /** How an answer comes. */
    private enum Coming {
        IN_TIME,
        LATE,
        TWICE,
        REFUSED,
        NEVER
    }

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final PrefillPages pages;
    private final Pulls pulls;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Mutation mutation;
    /** By request: what is offered. */
    private final Map<String, PrefillPrompt> held = new LinkedHashMap<>();

    private boolean healed;
    private long lastOffered;

    SimulatedSource(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            PrefillPages pages,
            Scenario scenario,
            WorldListener listener,
            Mutation mutation) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.pages = pages;
        this.pulls = scenario.hardships().pulls();
        this.random = new SplittableRandom(scenario.seed() * 0x94D049BB133111EBL + 2 * node.incarnation());
        this.listener = listener;
        this.mutation = mutation;
        if (pulls.any()) {
            scheduleReset();
        }
    }

    void heal() {
        healed = true;
    }

    int heldCount() {
        return held.size();
    }

    /** The carrier of a question is on its way to the engine. */
    void ask(TransferKey transfer, int tokenCount) {
        long withinNs = 1 + random.nextLong(ANSWERED_WITHIN_NS);
        switch (drawComing()) {
            case IN_TIME -> answerAfter(withinNs, transfer, tokenCount);
            case LATE -> answerAfter(random.nextLong(2 * Pulls.OFFER_LIMIT_NS), transfer, tokenCount);
            case TWICE -> {
                answerAfter(withinNs, transfer, tokenCount);
                answerAfter(2 * withinNs, transfer, tokenCount);
            }
            case REFUSED ->
                clock.after(
                        withinNs,
                        () -> node.input(
                                m -> node.cache().onEnqueueFailed(transfer, "the engine's API refused the question")));
            case NEVER -> {}
        }
    }

    private Coming drawComing() {
        boolean odd = !healed && random.nextDouble() < pulls.oddAnswers();
        return odd ? Coming.values()[1 + random.nextInt(Coming.values().length - 1)] : Coming.IN_TIME;
    }

    private void answerAfter(long delayNs, TransferKey transfer, int tokenCount) {
        clock.after(delayNs, () -> node.whenRunning(() -> answer(transfer, tokenCount)));
    }

    private void answer(TransferKey transfer, int tokenCount) {
        if (!node.alive()) {
            return;
        }
        PrefillPrompt offer = new PrefillPrompt(transfer, tokenCount, ++lastOffered);
        boolean refuses = !healed && random.nextDouble() < pulls.refusals();
        if (refuses || !pages.pin(offer, random)) {
            OfferOutcome reason = refuses ? REASONS.get(random.nextInt(REASONS.size())) : OfferOutcome.NOT_HELD;
            node.command(new EngineCommand.Offer(offer.request, transfer, true, 0, List.of(), reason));
            return;
        }
        held.put(offer.request, offer);
        int heldTokens = offer.pages.length * pool.blockTokens();
        listener.offerMade(node.process(), offer.request, offer.name, heldTokens);
        listener.prefillEnded(node.process(), offer.request, offer.name, PrefillOutcome.FINISHED);
        node.command(new EngineCommand.Offer(
                offer.request,
                transfer,
                true,
                heldTokens,
                pool.blocks().reported(0, offer.pages, mutation == Mutation.GROUPS_MIXED),
                OfferOutcome.HELD));
    }

    private void scheduleReset() {
        clock.after(random.nextLong(2 * pulls.resetPeriodNs()), () -> node.whenRunning(this::reset));
    }

    /** The cache is reset, or the weights change: what is offered and not granted is wanted back. */
    private void reset() {
        if (node.alive() && !healed) {
            for (String request : List.copyOf(held.keySet())) {
                listener.offerWithdrawn(node.process(), request);
                node.command(new EngineCommand.Withdraw(request));
            }
            scheduleReset();
        }
    }

    /** Gives the pages of an offer to their next owner; false if it is none of this engine's offers. */
    boolean released(String request) {
        PrefillPrompt offer = held.remove(request);
        if (offer != null) {
            pages.giveBack(offer);
        }
        return offer != null;
    }
}
