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
import java.util.function.Supplier;

/**
 * What an engine answers to peers' questions for its prefix cache: in time, late, twice or never. What it offers it holds
 * until its messenger releases it, also after it has taken the offer back.
 *
 * <p>There is one for each of the engine's messengers. Whichever was asked, the first one gets the answer, and each
 * offers its part of the pages, which are free when all have released them. One thread.
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

    /** One messenger's part of an offer. */
    private record Held(PrefillPrompt offer, JointEnd all) {}

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final PrefillPages pages;
    private final Supplier<List<SimulatedSource>> ofEngine;
    private final boolean first;
    private final Pulls pulls;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Mutation mutation;
    /** By request: what is offered. */
    private final Map<String, Held> held = new LinkedHashMap<>();

    private boolean healed;
    private long lastOffered;

    /** @param ofEngine those of the engine's live messengers, in their order */
    SimulatedSource(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            PrefillPages pages,
            Supplier<List<SimulatedSource>> ofEngine,
            Scenario scenario,
            WorldListener listener,
            Mutation mutation) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.pages = pages;
        this.ofEngine = ofEngine;
        this.first =
                scenario.messengersOf(Scenario.engineOf(node.name())).getFirst().equals(node.name());
        this.pulls = scenario.hardships().pulls();
        this.random = new SplittableRandom(scenario.seed() * 0x94D049BB133111EBL + 2 * node.incarnation());
        this.listener = listener;
        this.mutation = mutation;
        if (pulls.any() && first) {
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
        List<SimulatedSource> messengers = ofEngine.get();
        long number = ++lastOffered;
        boolean refuses = !healed && random.nextDouble() < pulls.refusals();
        int pinnedPages = refuses ? 0 : pinAtAll(messengers, transfer, tokenCount, number);
        String request = new PrefillPrompt(transfer, tokenCount, number).request;
        if (pinnedPages == 0) {
            OfferOutcome reason = refuses ? REASONS.get(random.nextInt(REASONS.size())) : OfferOutcome.NOT_HELD;
            messengers.stream()
                    .filter(each -> each.first)
                    .forEach(each -> inform(each, () -> each.offerNothing(request, transfer, reason)));
            return;
        }
        messengers.forEach(each -> inform(each, () -> each.offer(request)));
    }

    /** Holds as many pages for every messenger, and returns how many. */
    private int pinAtAll(List<SimulatedSource> messengers, TransferKey transfer, int tokenCount, long number) {
        int pagesMax = messengers.stream()
                .filter(each -> each != this)
                .mapToInt(each -> each.pool.spareCount())
                .min()
                .orElse(Integer.MAX_VALUE);
        PrefillPrompt own = new PrefillPrompt(transfer, tokenCount, number);
        if (pagesMax <= 0 || !pages.pin(own, random, pagesMax)) {
            return 0;
        }
        boolean firstSuffices = mutation == Mutation.OFFER_FREED_WITH_FIRST_MESSENGER;
        JointEnd all = new JointEnd(firstSuffices, () -> messengers.forEach(each -> each.giveBack(own.request)));
        for (SimulatedSource each : messengers) {
            PrefillPrompt offer = each == this ? own : new PrefillPrompt(transfer, tokenCount, number);
            if (each != this) {
                each.pages.pin(offer, own.pages.length);
            }
            each.held.put(offer.request, new Held(offer, all));
            all.add(each.node);
        }
        return own.pages.length;
    }

    /** One of the engine's messengers is told what the engine has decided. */
    private void inform(SimulatedSource other, Runnable action) {
        if (other == this) {
            action.run();
        } else {
            other.node.inNextStep(random, action);
        }
    }

    private void offerNothing(String request, TransferKey transfer, OfferOutcome reason) {
        node.command(new EngineCommand.Offer(request, transfer, true, 0, List.of(), reason));
    }

    private void offer(String request) {
        Held part = held.get(request);
        if (part == null) {
            return; // only with a bug is it free before it is offered
        }
        PrefillPrompt offer = part.offer;
        int heldTokens = offer.pages.length * pool.blockTokens();
        listener.offerMade(node.process(), offer.request, offer.name, heldTokens, first);
        listener.prefillEnded(node.process(), offer.request, offer.name, PrefillOutcome.FINISHED);
        node.command(new EngineCommand.Offer(
                offer.request,
                offer.transfer,
                first,
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
            for (SimulatedSource each : ofEngine.get()) {
                List<String> offered = List.copyOf(each.held.keySet());
                inform(each, () -> each.withdraw(offered));
            }
            scheduleReset();
        }
    }

    private void withdraw(List<String> offered) {
        for (String request : offered) {
            listener.offerWithdrawn(node.process(), request);
            node.command(new EngineCommand.Withdraw(request));
        }
    }

    /** The messenger needs the pages of an offer no longer; false if it is none of this engine's offers. */
    boolean released(String request) {
        Held part = held.get(request);
        if (part != null) {
            part.all.end(node);
        }
        return part != null;
    }

    /** Gives the pages of an offer to their next owner. */
    private void giveBack(String request) {
        Held part = held.remove(request);
        if (part != null && node.alive()) {
            pages.giveBack(part.offer);
        }
    }
}
