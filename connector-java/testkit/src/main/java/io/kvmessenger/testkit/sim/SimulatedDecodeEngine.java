package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
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
 * A decoder's inference engine: takes pages, fetches, abandons; pages of an ended fetch that failed have their next owner
 * in the same moment.
 */
final class SimulatedDecodeEngine {
    private static final int NO_CONTEXT_SLOT = -1;

    /** A request that waits for pages, or for its KV. */
    private static final class Request {
        final String id;
        final String transferId;
        final List<PrefillerAddress> prefillers;
        final int promptTokens;
        final boolean decoderFirst;
        int[] pages = new int[0];
        boolean asked;
        boolean ended;

        Request(
                String id,
                String transferId,
                List<PrefillerAddress> prefillers,
                int promptTokens,
                boolean decoderFirst) {
            this.id = id;
            this.transferId = transferId;
            this.prefillers = prefillers;
            this.promptTokens = promptTokens;
            this.decoderFirst = decoderFirst;
        }
    }

    /** A client leaves that soon: most fetches end in about that time. */
    private static final long ABANDON_WITHIN_NS = 5 * Scenario.MILLI;

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Swarm swarm;
    private final SplittableRandom random;
    /** What the engine sets for one request, where it sets a limit of its own. */
    private final long ownLimitNs;

    private final WorldListener listener;
    private final Map<String, Request> requests = new LinkedHashMap<>();
    /** Requests that decode: they hold pages that arrived. */
    private int decodingCount;

    private boolean healed;

    SimulatedDecodeEngine(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            Swarm swarm,
            SplittableRandom random,
            long ownLimitNs,
            WorldListener listener) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.swarm = swarm;
        this.random = random;
        this.ownLimitNs = ownLimitNs;
        this.listener = listener;
    }

    void start(String transferId, List<PrefillerAddress> prefillers, int promptTokens, boolean decoderFirst) {
        String id = transferId + "/d";
        Request request = new Request(id, transferId, prefillers, promptTokens, decoderFirst);
        requests.put(id, request);
        schedule();
        if (!healed && random.nextDouble() < swarm.fetchAbandon()) {
            clock.after(random.nextLong(ABANDON_WITHIN_NS), () -> node.whenRunning(() -> abandon(request)));
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
            listener.transferDeclined(node.process(), request.transferId, FetchFacts.hostsOf(request.prefillers));
            node.command(new EngineCommand.Decline(new TransferKey(request.transferId, ""), request.prefillers));
        } else if (!request.ended || random.nextBoolean()) {
            listener.fetchAbandoned(node.process(), request.id);
            node.command(new EngineCommand.Abandon(request.id)); // also too late: the end may be on its way
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
                pool.giveBack(request.pages);
                schedule();
            }
        });
    }

    void failed(String requestId, String reason) {
        listener.fetchFailed(node.process(), requestId, reason);
        Request request = requests.remove(requestId);
        if (request != null) {
            request.ended = true;
            pool.giveBack(request.pages);
            schedule();
        }
    }

    private void schedule() {
        clock.after(random.nextLong(300 * Scenario.MICRO), () -> node.whenRunning(this::askAll));
    }

    private void askAll() {
        if (node.alive()) {
            for (Request request : new ArrayList<>(requests.values())) {
                if (!request.asked) {
                    ask(request);
                }
            }
        }
    }

    /** As many pages of each group as the tokens take. */
    private List<int[]> grantable(Request request, int firstToken) {
        return IntStream.range(0, pool.geometry().groups().size())
                .mapToObj(group -> Arrays.copyOf(
                        pool.blocks().of(group, request.pages),
                        pool.geometry().groups().get(group).pagesFor(firstToken, request.promptTokens)))
                .toList();
    }

    private void ask(Request request) {
        int pageTokens = pool.blockTokens();
        int cachedPages = random.nextInt(3) == 0 ? random.nextInt((request.promptTokens - 1) / pageTokens + 1) : 0;
        int pageCount = pool.pagesFor(request.promptTokens) - cachedPages;
        if (pageCount > pool.spareCount()) {
            return;
        }
        request.asked = true;
        request.pages = pool.take(pageCount);
        EngineCommand.Fetch fetch = new EngineCommand.Fetch(
                request.id,
                request.transferId,
                request.prefillers,
                request.promptTokens,
                cachedPages * pageTokens,
                grantable(request, cachedPages * pageTokens),
                NO_CONTEXT_SLOT,
                random.nextInt(4) == 0 ? ownLimitNs : 0,
                "",
                request.decoderFirst
                        ? new EngineCommand.Prompt(new int[request.promptTokens], "", 0)
                        : EngineCommand.Prompt.NONE);
        listener.fetchAsked(FetchFacts.of(node.process(), fetch));
        node.command(fetch);
    }
}
