package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.testkit.sim.check.FetchFacts;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/**
 * A decoder's inference engine: takes pages, fetches, abandons; pages of a failed fetch are given to their next owner
 * immediately after its end.
 */
final class SimulatedDecodeEngine {
    /** A request that waits for pages, or for its KV. */
    private static final class Request {
        final String id;
        final TransferKey transfer;
        /** Name of its prompt. */
        final String name;

        final List<PrefillerAddress> prefillers;
        final int promptTokens;
        final boolean decoderFirst;
        int[] pages = new int[0];
        /** The scheduler ignores it until then. */
        long queuedUntilNs;

        int contextSlot = ContextSlots.NO_SLOT;
        boolean asked;
        boolean ended;

        Request(
                TransferKey transfer,
                long number,
                List<PrefillerAddress> prefillers,
                int promptTokens,
                boolean decoderFirst) {
            this.transfer = transfer;
            this.name = PromptName.of(transfer);
            this.id = name + "/d" + number;
            this.prefillers = prefillers;
            this.promptTokens = promptTokens;
            this.decoderFirst = decoderFirst;
        }
    }

    /** Time within which a client may abandon a request: comparable to the duration of most fetches. */
    private static final long ABANDON_WITHIN_NS = 5 * Scenario.MILLI;
    /** Longest time from a decoder's leg to the prefiller's. */
    private static final long LEGS_APART_MAX_NS = Scenario.SAFETY_NS / 2;

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Swarm swarm;
    private final SplittableRandom random;
    /** The fetch limit that the engine sets for one request, if it sets one. */
    private final long ownLimitNs;

    private final Traffic traffic;
    /** How long a request is queued after all faults, if prefillers are told about queued requests. */
    private final long queuedNs;

    private final long healedLimitNs;

    private final WorldListener listener;
    private final Map<String, Request> requests = new LinkedHashMap<>();
    /** Number of requests that decode: they hold pages that have arrived. */
    private int decodingCount;

    private boolean healed;
    private long lastStarted;

    SimulatedDecodeEngine(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            SplittableRandom random,
            Scenario scenario,
            WorldListener listener) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.swarm = scenario.swarm();
        this.random = random;
        this.ownLimitNs = scenario.ownFetchLimitNs();
        this.healedLimitNs = scenario.healedFetchLimitNs();
        this.traffic = scenario.traffic();
        this.queuedNs = scenario.queuedNs();
        this.listener = listener;
    }

    void start(TransferKey transfer, List<PrefillerAddress> prefillers, int promptTokens, boolean decoderFirst) {
        Request request = new Request(transfer, ++lastStarted, prefillers, promptTokens, decoderFirst);
        requests.put(request.id, request);
        if (traffic.expects()) {
            node.command(new EngineCommand.Expect(transfer, prefillers));
            if (healed) {
                request.queuedUntilNs = clock.nowNs() + queuedNs;
                clock.at(request.queuedUntilNs, this::schedule);
            }
        }
        schedule();
        if (!healed && random.nextDouble() < swarm.fetchAbandon()) {
            clock.after(random.nextLong(ABANDON_WITHIN_NS), () -> node.whenRunning(() -> abandon(request)));
        }
    }

    /** A request that would have been started under this id never arrives here. */
    void reject(String transferId, List<PrefillerAddress> prefillers) {
        listener.transferRejected(node.process(), transferId, FetchFacts.hostsOf(prefillers));
        node.command(new EngineCommand.Reject(transferId, prefillers));
    }

    /** Pages have become free. */
    void wake() {
        if (requests.values().stream().anyMatch(request -> !request.asked)) {
            schedule();
        }
    }

    void heal() {
        healed = true;
    }

    int unendedCount() {
        return requests.size() + decodingCount;
    }

    String describeUnended() {
        return requests.keySet() + " and " + decodingCount + " decoding";
    }

    private void abandon(Request request) {
        if (!node.alive()) {
            return;
        }
        if (!request.asked) {
            requests.remove(request.id); // it had no pages yet
            listener.transferDeclined(node.process(), request.name, FetchFacts.hostsOf(request.prefillers));
            node.command(new EngineCommand.Decline(request.transfer, request.prefillers));
        } else if (!request.ended || random.nextBoolean()) {
            listener.fetchAbandoned(node.process(), request.id);
            node.command(new EngineCommand.Abandon(request.id)); // possibly too late: the end may be on its way
        }
    }

    void arrived(String requestId, int pageCount) {
        listener.fetchArrived(node.process(), requestId, pageCount);
        Request request = requests.remove(requestId);
        if (request == null) {
            return;
        }
        request.ended = true;
        decodingCount++;
        clock.after(random.nextLong(3 * Scenario.MILLI), () -> {
            if (node.alive()) {
                decodingCount--;
                listener.decodeEnded(node.process(), requestId);
                giveBack(request);
                schedule();
            }
        });
    }

    void failed(String requestId, String reason) {
        listener.fetchFailed(node.process(), requestId, reason);
        Request request = requests.remove(requestId);
        if (request != null) {
            request.ended = true;
            giveBack(request);
            schedule();
        }
    }

    private void giveBack(Request request) {
        pool.giveBack(request.pages);
        pool.context().giveBack(request.contextSlot);
    }

    private void schedule() {
        clock.after(random.nextLong(300 * Scenario.MICRO), () -> node.whenRunning(this::askAll));
    }

    private void askAll() {
        if (node.alive()) {
            for (Request request : new ArrayList<>(requests.values())) {
                if (!request.asked && clock.nowNs() >= request.queuedUntilNs) {
                    ask(request);
                }
            }
        }
    }

    /** 0 = none. Requests after all faults have to arrive, however long the prefiller's queue is. */
    private long drawLimitNs() {
        boolean drawn = random.nextInt(4) == 0;
        if (healed) {
            return healedLimitNs;
        }
        return drawn && clock.nowNs() < Scenario.SAFETY_NS - LEGS_APART_MAX_NS ? ownLimitNs : 0;
    }

    /** As many pages of each group as the tokens need. */
    private List<int[]> grantable(Request request, int firstToken) {
        return IntStream.range(0, pool.geometry().groups().size())
                .mapToObj(group -> Arrays.copyOf(
                        pool.blocks().of(group, request.pages),
                        pool.geometry().groups().get(group).pagesFor(firstToken, request.promptTokens)))
                .toList();
    }

    /** A random choice of the kinds of rows that go on request. */
    private List<String> kindsToAsk() {
        return pool.context().kinds().kinds().stream()
                .filter(kind -> !kind.always() && random.nextBoolean())
                .map(ContextKind::name)
                .toList();
    }

    private void ask(Request request) {
        int pageTokens = pool.blockTokens();
        int cachedPages = random.nextInt(3) == 0 ? random.nextInt((request.promptTokens - 1) / pageTokens + 1) : 0;
        List<String> asked = kindsToAsk();
        ContextChoice rows = pool.context().kinds().chosen(asked);
        if (!rows.isEmpty() && request.promptTokens % pageTokens == 0 && random.nextInt(4) == 0) {
            cachedPages = request.promptTokens / pageTokens; // only the rows are missing
        }
        int pageCount = pool.pagesFor(request.promptTokens) - cachedPages;
        if (pageCount > pool.spareCount()) {
            return;
        }
        request.asked = true;
        request.pages = pool.take(pageCount);
        request.contextSlot = pool.context().takeFor(rows);
        EngineCommand.Fetch fetch = new EngineCommand.Fetch(
                request.id,
                request.transfer.id(),
                request.prefillers,
                request.promptTokens,
                cachedPages * pageTokens,
                grantable(request, cachedPages * pageTokens),
                request.contextSlot,
                asked,
                drawLimitNs(),
                request.transfer.digest(),
                request.decoderFirst
                        ? new EngineCommand.Prompt(new int[request.promptTokens], "", 0)
                        : EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE);
        listener.fetchAsked(FetchFacts.of(node.process(), fetch, rows));
        node.command(fetch);
    }
}
