package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.testkit.sim.check.FetchFacts;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * An engine's questions for what other engines' prefix caches hold: what is offered it fetches into pages of its own, or
 * declines. It gives up in every state, and asks engines that are dead, or that never were.
 *
 * <p>There is one for each of the engine's messengers. That of the first one asks and decides for all: each fetches its
 * part from all messengers of the other engine, and what is fetched is used when all have theirs. One thread.
 */
final class SimulatedPulls {
    private static final int PAGES_ASKED_MAX = 5;
    private static final long LIMIT_MAX_NS = 30 * Scenario.MILLI;
    private static final long GIVEN_UP_WITHIN_NS = 5 * Scenario.MILLI;
    /** At no engine's address. */
    private static final String NOWHERE = "nowhere";

    /** With these the other engine may have heard the question, and may still offer something. */
    private static final Set<OfferOutcome> UNANSWERED = EnumSet.of(OfferOutcome.LATE, OfferOutcome.UNREACHABLE);

    private enum State {
        ASKED,
        OFFERED,
        FETCHING,
        OVER
    }

    /** A question, and what comes of it at all messengers of its engine. */
    private static final class Pull {
        final String request;
        final TransferKey transfer;
        final List<PrefillerAddress> sources;
        final int askedPages;
        /** After all faults: it is not given up, and arrives if it is offered. */
        final boolean certain;

        State state = State.ASKED;
        int heldTokens;

        Pull(String name, List<String> hosts, int askedPages, boolean certain) {
            this.request = name + "/q";
            this.transfer = PromptName.key(name, name);
            this.sources = hosts.stream()
                    .map(host -> new PrefillerAddress(host, 1, ""))
                    .toList();
            this.askedPages = askedPages;
            this.certain = certain;
        }

        String name() {
            return transfer.id();
        }

        PrefillerAddress asked() {
            return sources.getFirst();
        }
    }

    /** What one messenger fetches of a pull. */
    private static final class Part {
        final Pull pull;
        final int[] pages;
        final JointEnd all;
        boolean begun;
        boolean arrived;
        boolean ended;

        Part(Pull pull, int[] pages, JointEnd all) {
            this.pull = pull;
            this.pages = pages;
            this.all = all;
        }
    }

    private final Simulation world;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Supplier<List<SimulatedPulls>> ofEngine;
    private final Pulls drawn;
    private final SplittableRandom random;
    private final WorldListener listener;
    /** Called when pages become free that may be awaited. */
    private final Runnable onFreed;

    /** Questions of the engine that fetch nothing yet. */
    private final Map<String, Pull> asked = new LinkedHashMap<>();
    /** By request: what this messenger fetches. */
    private final Map<String, Part> parts = new LinkedHashMap<>();

    private boolean healed;
    private long lastAsked;

    /** @param ofEngine those of the engine's live messengers, in their order */
    SimulatedPulls(
            Simulation world,
            SimulatedNode node,
            PagePool pool,
            Supplier<List<SimulatedPulls>> ofEngine,
            Runnable onFreed) {
        Scenario scenario = world.scenario();
        this.world = world;
        this.node = node;
        this.pool = pool;
        this.ofEngine = ofEngine;
        this.drawn = scenario.hardships().pulls();
        this.random = new SplittableRandom(scenario.seed() * 0x94D049BB133111EBL + 2 * node.incarnation() + 1);
        this.listener = world.listener();
        this.onFreed = onFreed;
        if (asksAtAll()) {
            schedule();
        }
    }

    private boolean asksAtAll() {
        return drawn.any() && ownNames().getFirst().equals(node.name());
    }

    private String engine() {
        return Scenario.engineOf(node.name());
    }

    private List<String> ownNames() {
        return world.scenario().messengersOf(engine());
    }

    void heal() {
        healed = true;
    }

    int unendedCount() {
        return asked.size() + parts.size();
    }

    String describeUnended() {
        return asked.values().stream().map(p -> p.request + " " + p.state).toList() + " and " + parts.keySet()
                + " pulled";
    }

    boolean has(String request) {
        return parts.containsKey(request);
    }

    /** One of the engine's messengers is told what the engine has decided. */
    private void inform(SimulatedPulls other, Runnable action) {
        if (other == this) {
            action.run();
        } else {
            other.node.inNextStep(random, action);
        }
    }

    // ---- questions

    private void schedule() {
        world.clock().after(random.nextLong(2 * drawn.periodNs()), () -> node.whenRunning(this::askAny));
    }

    private void askAny() {
        if (!node.alive() || healed) {
            return;
        }
        Pull pull = new Pull(newName(), drawHosts(), 1 + random.nextInt(PAGES_ASKED_MAX), false);
        ask(pull, Scenario.MILLI + random.nextLong(LIMIT_MAX_NS));
        if (givesUp()) {
            world.clock().after(random.nextLong(GIVEN_UP_WITHIN_NS), () -> node.whenRunning(() -> giveUp(pull)));
        }
        schedule();
    }

    /** After all faults: a page of each other engine. */
    void askAll() {
        if (asksAtAll()) {
            for (String other : otherEngines()) {
                List<String> hosts = world.scenario().messengersOf(other);
                ask(new Pull(newName(), hosts, 1, true), Scenario.LIVENESS_NS / 4);
            }
        }
    }

    /** A refused link is a fault of the network, so that not every run may have one. */
    private List<String> drawHosts() {
        List<String> engines = otherEngines();
        boolean wrong = random.nextInt(16) == 0 && world.scenario().weather() == Scenario.Weather.FAULTY;
        return wrong
                ? List.of(NOWHERE)
                : named(world.scenario().messengersOf(engines.get(random.nextInt(engines.size()))));
    }

    /** As a router names an engine's messengers: another one first, or not all of them. */
    private List<String> named(List<String> hosts) {
        int odd = hosts.size() == 1 ? -1 : random.nextInt(8);
        List<String> named = new ArrayList<>(hosts);
        if (odd == 0) {
            Collections.rotate(named, 1);
        } else if (odd == 1) {
            named.removeLast();
        }
        return named;
    }

    private List<String> otherEngines() {
        return world.names().stream()
                .map(Scenario::engineOf)
                .distinct()
                .filter(other -> !other.equals(engine()))
                .toList();
    }

    private String newName() {
        return "q" + node.incarnation() + "-" + ++lastAsked;
    }

    private boolean givesUp() {
        return random.nextDouble() < drawn.giveUps();
    }

    private void ask(Pull pull, long limitNs) {
        asked.put(pull.request, pull);
        listener.requestRouted(pull.name(), FetchFacts.hostsOf(pull.sources), ownNames(), false);
        listener.pullAsked(
                node.process(), pull.request, pull.name(), pull.asked().host(), limitNs, pull.certain);
        int[] tokenIds = new int[pull.askedPages * pool.blockTokens()];
        node.command(new EngineCommand.Ask(
                pull.request, pull.transfer, pull.asked(), new EngineCommand.Prompt(tokenIds, "", 0), limitNs));
    }

    private void giveUp(Pull pull) {
        if (!node.alive()) {
            return;
        }
        switch (pull.state) {
            case ASKED, OFFERED -> decline(pull);
            case FETCHING ->
                ofEngine.get().forEach(messenger -> inform(messenger, () -> messenger.abandonPart(pull.request)));
            case OVER -> {}
        }
    }

    private void decline(Pull pull) {
        end(pull);
        node.input(m -> listener.pullDeclined(node.process(), pull.request));
        declineAtAll(pull);
    }

    private void end(Pull pull) {
        pull.state = State.OVER;
        asked.remove(pull.request);
    }

    /** Each messenger of the engine declines its part, at each that was named. */
    private void declineAtAll(Pull pull) {
        ofEngine.get().forEach(messenger -> inform(messenger, () -> messenger.declinePart(pull)));
    }

    private void declinePart(Pull pull) {
        listener.transferDeclined(node.process(), pull.name(), FetchFacts.hostsOf(pull.sources));
        node.command(new EngineCommand.Decline(pull.transfer, pull.sources));
    }

    // ---- answers

    void offered(String request, int heldTokens, OfferOutcome outcome) {
        listener.pullOffered(node.process(), request, heldTokens, outcome);
        Pull pull = asked.get(request);
        if (pull == null) {
            return; // its decline is on the way
        }
        if (heldTokens == 0) {
            end(pull);
            if (UNANSWERED.contains(outcome) && ownNames().size() * pull.sources.size() > 1) {
                declineAtAll(pull);
            }
            return;
        }
        pull.state = State.OFFERED;
        pull.heldTokens = heldTokens;
        boolean slowly = !pull.certain && random.nextInt(8) == 0;
        long withinNs = slowly ? 2 * Pulls.OFFER_LIMIT_NS : 300 * Scenario.MICRO;
        world.clock().after(random.nextLong(withinNs), () -> node.whenRunning(() -> decide(pull)));
    }

    private void decide(Pull pull) {
        if (!node.alive() || pull.state != State.OFFERED) {
            return;
        }
        int heldPages = pull.heldTokens / pool.blockTokens();
        int ownPages = !pull.certain && random.nextInt(3) == 0 ? random.nextInt(heldPages) : 0;
        boolean tooMuch = !pull.certain && random.nextInt(12) == 0; // more than is offered
        int endPage = heldPages + (tooMuch ? 1 : 0);
        List<SimulatedPulls> messengers = ofEngine.get();
        boolean hasRoom = messengers.stream().allMatch(each -> endPage - ownPages <= each.pool.spareCount());
        if (!hasRoom || (!pull.certain && givesUp())) {
            decline(pull);
        } else {
            fetch(pull, messengers, ownPages, endPage);
        }
    }

    /** The pages are the engine's own at once; its messengers learn of them in their next steps. */
    private void fetch(Pull pull, List<SimulatedPulls> messengers, int fromPage, int endPage) {
        end(pull);
        pull.state = State.FETCHING;
        boolean firstSuffices = world.mutation() == Mutation.PULL_LANDED_WITH_FIRST_MESSENGER;
        JointEnd all = new JointEnd(firstSuffices, () -> fetched(pull, messengers, firstSuffices));
        for (SimulatedPulls messenger : messengers) {
            messenger.parts.put(pull.request, new Part(pull, messenger.pool.take(endPage - fromPage), all));
            all.add(messenger.node);
        }
        if (pull.certain) {
            listener.requestRouted(pull.name(), FetchFacts.hostsOf(pull.sources), ownNames(), true);
        }
        messengers.forEach(messenger -> inform(messenger, () -> messenger.fetchPart(pull.request, fromPage, endPage)));
    }

    private void fetchPart(String request, int fromPage, int endPage) {
        Part part = parts.get(request);
        if (part == null) {
            return; // only with a bug is it over before it has begun
        }
        part.begun = true;
        Pull pull = part.pull;
        EngineCommand.Fetch fetch = new EngineCommand.Fetch(
                pull.request,
                pull.transfer.id(),
                pull.sources,
                endPage * pool.blockTokens(),
                fromPage * pool.blockTokens(),
                IntStream.range(0, pool.geometry().groups().size())
                        .mapToObj(group -> pool.blocks().of(group, part.pages))
                        .toList(),
                ContextSlots.NO_SLOT,
                List.of(),
                pull.certain ? world.scenario().healedFetchLimitNs() : 0,
                pull.transfer.digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE);
        listener.fetchAsked(FetchFacts.of(node.process(), fetch));
        node.command(fetch);
    }

    private void abandonPart(String request) {
        Part part = parts.get(request);
        if (part != null && part.begun && !part.ended) {
            listener.fetchAbandoned(node.process(), request);
            node.command(new EngineCommand.Abandon(request));
        }
    }

    // ---- ends of fetches

    void arrived(String request, int pageCount) {
        listener.fetchArrived(node.process(), request, pageCount);
        endPart(request, true);
    }

    void failed(String request, String reason) {
        listener.fetchFailed(node.process(), request, reason);
        endPart(request, false);
    }

    private void endPart(String request, boolean arrived) {
        Part part = parts.get(request);
        part.ended = true;
        part.arrived = arrived;
        part.all.end(node);
    }

    /** No messenger fetches any more. What all of them have is used; what one lacks has to be computed. */
    private void fetched(Pull pull, List<SimulatedPulls> messengers, boolean firstSuffices) {
        pull.state = State.OVER;
        boolean landed = firstSuffices
                ? messengers.stream().anyMatch(each -> each.hasArrived(pull.request))
                : messengers.stream().allMatch(each -> each.hasArrived(pull.request));
        if (!landed) {
            giveBack(pull, messengers);
            return;
        }
        world.clock().after(random.nextLong(3 * Scenario.MILLI), () -> {
            listener.pullUsed(
                    messengers.stream()
                            .filter(each -> each.node.alive())
                            .map(each -> each.node.process())
                            .toList(),
                    pull.request);
            messengers.stream().filter(each -> each.node.alive()).forEach(each -> each.endDecode(pull.request));
            giveBack(pull, messengers);
        });
    }

    private boolean hasArrived(String request) {
        return node.alive() && parts.get(request).arrived;
    }

    private void endDecode(String request) {
        if (parts.get(request).begun) {
            listener.decodeEnded(node.process(), request);
        }
    }

    private static void giveBack(Pull pull, List<SimulatedPulls> messengers) {
        for (SimulatedPulls each : messengers) {
            Part part = each.parts.remove(pull.request);
            if (each.node.alive()) {
                each.pool.giveBack(part.pages);
                each.onFreed.run();
            }
        }
    }
}
