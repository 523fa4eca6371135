package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.testkit.sim.check.FetchFacts;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/**
 * An engine's questions for what other engines' prefix caches hold: what is offered it fetches into pages of its own, or
 * declines. It gives up in every state, and asks engines that are dead, or that never were. One thread.
 */
final class SimulatedPulls {
    private static final int PAGES_ASKED_MAX = 5;
    private static final long LIMIT_MAX_NS = 30 * Scenario.MILLI;
    private static final long GIVEN_UP_WITHIN_NS = 5 * Scenario.MILLI;
    /** At no engine's address. */
    private static final String NOWHERE = "nowhere";

    private enum State {
        ASKED,
        OFFERED,
        FETCHING,
        ARRIVED
    }

    private static final class Pull {
        final String request;
        final TransferKey transfer;
        final PrefillerAddress source;
        final int askedPages;
        /** After all faults: it is not given up, and arrives if it is offered. */
        final boolean certain;

        State state = State.ASKED;
        int heldTokens;
        int[] pages = new int[0];

        Pull(String name, String host, int askedPages, boolean certain) {
            this.request = name + "/q";
            this.transfer = PromptName.key(name, name);
            this.source = new PrefillerAddress(host, 1, "");
            this.askedPages = askedPages;
            this.certain = certain;
        }

        String name() {
            return transfer.id();
        }
    }

    private final Simulation world;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Pulls drawn;
    private final SplittableRandom random;
    private final WorldListener listener;
    /** Called when pages become free that may be awaited. */
    private final Runnable onFreed;

    private final Map<String, Pull> pulls = new LinkedHashMap<>();
    private boolean healed;
    private long lastAsked;

    SimulatedPulls(Simulation world, SimulatedNode node, PagePool pool, Runnable onFreed) {
        Scenario scenario = world.scenario();
        this.world = world;
        this.node = node;
        this.pool = pool;
        this.drawn = scenario.hardships().pulls();
        this.random = new SplittableRandom(scenario.seed() * 0x94D049BB133111EBL + 2 * node.incarnation() + 1);
        this.listener = world.listener();
        this.onFreed = onFreed;
        if (asksAtAll()) {
            schedule();
        }
    }

    /** A question is for all that one messenger's engine needs: engines of several compute their prompts themselves. */
    private boolean asksAtAll() {
        return drawn.any() && !isOneOfSeveral(node.name());
    }

    private static boolean isOneOfSeveral(String host) {
        return !Scenario.engineOf(host).equals(host);
    }

    void heal() {
        healed = true;
    }

    int unendedCount() {
        return pulls.size();
    }

    String describeUnended() {
        return pulls.values().stream().map(p -> p.request + " " + p.state).toList() + " pulled";
    }

    boolean has(String request) {
        return pulls.containsKey(request);
    }

    // ---- questions

    private void schedule() {
        world.clock().after(random.nextLong(2 * drawn.periodNs()), () -> node.whenRunning(this::askAny));
    }

    private void askAny() {
        if (!node.alive() || healed) {
            return;
        }
        Pull pull = new Pull(newName(), drawHost(), 1 + random.nextInt(PAGES_ASKED_MAX), false);
        ask(pull, Scenario.MILLI + random.nextLong(LIMIT_MAX_NS));
        if (givesUp()) {
            world.clock().after(random.nextLong(GIVEN_UP_WITHIN_NS), () -> node.whenRunning(() -> giveUp(pull)));
        }
        schedule();
    }

    /** After all faults: a page of each other engine. */
    void askAll() {
        if (asksAtAll()) {
            others().forEach(host -> ask(new Pull(newName(), host, 1, true), Scenario.LIVENESS_NS / 4));
        }
    }

    /** A refused link is a fault of the network, so that not every run may have one. */
    private String drawHost() {
        List<String> hosts = others();
        boolean wrong = random.nextInt(16) == 0 && world.scenario().weather() == Scenario.Weather.FAULTY;
        return wrong ? NOWHERE : hosts.get(random.nextInt(hosts.size()));
    }

    private List<String> others() {
        return world.names().stream().filter(name -> !name.equals(node.name())).toList();
    }

    private String newName() {
        return "q" + node.incarnation() + "-" + ++lastAsked;
    }

    private boolean givesUp() {
        return random.nextDouble() < drawn.giveUps();
    }

    private void ask(Pull pull, long limitNs) {
        pulls.put(pull.request, pull);
        List<String> sources = List.of(pull.source.host());
        listener.requestRouted(pull.name(), sources, List.of(node.name()), false);
        listener.pullAsked(node.process(), pull.request, pull.name(), pull.source.host(), limitNs, pull.certain);
        int[] tokenIds = new int[pull.askedPages * pool.blockTokens()];
        node.command(new EngineCommand.Ask(
                pull.request, pull.transfer, pull.source, new EngineCommand.Prompt(tokenIds, "", 0), limitNs));
    }

    private void giveUp(Pull pull) {
        if (!node.alive() || pulls.get(pull.request) != pull) {
            return;
        }
        switch (pull.state) {
            case ASKED, OFFERED -> decline(pull);
            case FETCHING -> {
                listener.fetchAbandoned(node.process(), pull.request);
                node.command(new EngineCommand.Abandon(pull.request));
            }
            case ARRIVED -> {}
        }
    }

    private void decline(Pull pull) {
        pulls.remove(pull.request);
        listener.transferDeclined(node.process(), pull.name(), List.of(pull.source.host()));
        node.input(m -> listener.pullDeclined(node.process(), pull.request));
        node.command(new EngineCommand.Decline(pull.transfer, List.of(pull.source)));
    }

    // ---- answers

    void offered(String request, int heldTokens, OfferOutcome outcome) {
        listener.pullOffered(node.process(), request, heldTokens, outcome);
        Pull pull = pulls.get(request);
        if (pull == null) {
            return; // its decline is on the way
        }
        if (heldTokens == 0) {
            pulls.remove(request);
            return;
        }
        pull.state = State.OFFERED;
        pull.heldTokens = heldTokens;
        boolean slowly = !pull.certain && random.nextInt(8) == 0;
        long withinNs = slowly ? 2 * Pulls.OFFER_LIMIT_NS : 300 * Scenario.MICRO;
        world.clock().after(random.nextLong(withinNs), () -> node.whenRunning(() -> decide(pull)));
    }

    private void decide(Pull pull) {
        if (!node.alive() || pulls.get(pull.request) != pull) {
            return;
        }
        int heldPages = pull.heldTokens / pool.blockTokens();
        int ownPages = !pull.certain && random.nextInt(3) == 0 ? random.nextInt(heldPages) : 0;
        boolean tooMuch = !pull.certain && random.nextInt(12) == 0; // more than is offered
        int endPage = heldPages + (tooMuch ? 1 : 0);
        if (endPage - ownPages > pool.spareCount() || (!pull.certain && givesUp())) {
            decline(pull);
        } else {
            fetch(pull, ownPages, endPage);
        }
    }

    private void fetch(Pull pull, int fromPage, int endPage) {
        pull.state = State.FETCHING;
        pull.pages = pool.take(endPage - fromPage);
        List<PrefillerAddress> sources = List.of(pull.source);
        EngineCommand.Fetch fetch = new EngineCommand.Fetch(
                pull.request,
                pull.transfer.id(),
                sources,
                endPage * pool.blockTokens(),
                fromPage * pool.blockTokens(),
                IntStream.range(0, pool.geometry().groups().size())
                        .mapToObj(group -> pool.blocks().of(group, pull.pages))
                        .toList(),
                ContextSlots.NO_SLOT,
                List.of(),
                pull.certain ? world.scenario().healedFetchLimitNs() : 0,
                pull.transfer.digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE);
        if (pull.certain && !isOneOfSeveral(pull.source.host())) {
            listener.requestRouted(pull.name(), FetchFacts.hostsOf(sources), List.of(node.name()), true);
        }
        listener.fetchAsked(FetchFacts.of(node.process(), fetch));
        node.command(fetch);
    }

    // ---- ends of fetches

    void arrived(String request, int pageCount) {
        listener.fetchArrived(node.process(), request, pageCount);
        Pull pull = pulls.get(request);
        pull.state = State.ARRIVED;
        world.clock().after(random.nextLong(3 * Scenario.MILLI), () -> {
            if (node.alive()) {
                listener.decodeEnded(node.process(), request);
                giveBack(pull);
            }
        });
    }

    void failed(String request, String reason) {
        listener.fetchFailed(node.process(), request, reason);
        giveBack(pulls.get(request));
    }

    private void giveBack(Pull pull) {
        pulls.remove(pull.request);
        pool.giveBack(pull.pages);
        onFreed.run();
    }
}
