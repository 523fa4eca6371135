package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.check.FetchFacts;
import io.kvmessenger.testkit.sim.check.Violation;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * The interface that an engine in Python calls: its messenger, its pages, its log. Reports what passes to the checkers.
 *
 * <p>Public, with public methods, because Python sees nothing else. The connector would catch a checker's exception, as
 * it lets none out, so exceptions are kept until the call into Python has returned.
 */
public final class PythonHost {
    private static final int POLL_CAPACITY_BYTES = 1 << 20;
    /** Its engine has one rank. */
    private static final int RANK_INDEX = 0;

    /** One request's share of the running forward pass. */
    private record Share(String request, String transferId, int[] pages, int firstToken, int endToken) {}

    private final Trace trace;
    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final MemorySegment memory;
    /** By layer. */
    private final List<PageContent> contents;

    private final WorldListener listener;
    private final long fetchLimitNs;
    private final Boundary boundary;
    private final Boundary.Channel channel;

    private final List<Share> shares = new ArrayList<>();
    /** Transfers of prefills whose chunks the messenger knows, until they end or lose their pages. */
    private final Map<String, String> transferByPrefill = new HashMap<>();

    private final Set<String> reportedInStep = new HashSet<>();
    /** Transfers for which the prefiller must receive a fetch or a decline. */
    private final Set<String> unheard = new LinkedHashSet<>();
    /** Fetches that have not ended. */
    private final Set<String> fetching = new HashSet<>();
    /** Fetches whose end the connector has asked for again. */
    private final Set<String> askedFor = new HashSet<>();

    private List<String> fenced = List.of();
    private final List<Integer> unwritten = new ArrayList<>();
    private int eventsWaiting;
    private Runnable onFenced = () -> {};
    private RuntimeException fault;

    PythonHost(Simulation world, SimulatedNode node, PagePool pool, Boundary.Channel channel, Boundary boundary) {
        this.trace = world.trace();
        this.clock = world.clock();
        this.listener = world.listener();
        this.node = node;
        this.fetchLimitNs = world.scenario().limits().fetchLimitNs();
        this.pool = pool;
        this.memory = pool.memories().get(RANK_INDEX);
        this.contents = IntStream.range(0, layers(pool).size())
                .mapToObj(layer -> new PageContent(pool.geometry(), RANK_INDEX, layer))
                .toList();
        this.channel = channel;
        this.boundary = boundary;
    }

    void onFenced(Runnable onFenced) {
        this.onFenced = onFenced;
    }

    /** Rethrows the exception of a checker, or of a bug, from the last call into Python. */
    void rethrow() {
        if (fault != null) {
            throw fault;
        }
    }

    private <T> T kept(T otherwise, Supplier<T> action) {
        try {
            return action.get();
        } catch (RuntimeException e) {
            fault = fault == null ? e : fault;
            return otherwise;
        }
    }

    private void kept(Runnable action) {
        kept(null, () -> {
            action.run();
            return null;
        });
    }

    // ---- the messenger

    public void submit(String json) {
        kept(() -> boundary.read(json.getBytes(StandardCharsets.UTF_8)).forEach(this::submit));
    }

    private void submit(EngineCommand command) {
        switch (command) {
            case EngineCommand.Step step -> step.chunks().forEach(this::chunkReported);
            case EngineCommand.PrefillEnded end -> {
                String transferId = transferByPrefill.remove(end.request());
                listener.prefillEnded(node.process(), end.request(), transferId, end.outcome());
            }
            case EngineCommand.Fetch fetch -> {
                unheard.remove(fetch.transferId());
                fetching.add(fetch.request());
                listener.fetchAsked(FetchFacts.of(node.process(), fetch));
            }
            case EngineCommand.Abandon abandon -> listener.fetchAbandoned(node.process(), abandon.request());
            case EngineCommand.ReportEnd again -> askedFor.add(again.request());
            case EngineCommand.Decline decline -> {
                unheard.remove(decline.transfer().id());
                listener.transferDeclined(
                        node.process(), decline.transfer().id(), FetchFacts.hostsOf(decline.prefillers()));
            }
            case EngineCommand.Reject reject -> unheard.remove(reject.transferId());
            default -> {} // not observed by any checker
        }
        trace.add(node.process(), "command", describe(command));
        node.command(command);
    }

    /** A prefiller may hold pages for this transfer until it receives a fetch, a decline or a rejection. */
    void expectWord(String transferId) {
        unheard.add(transferId);
    }

    Set<String> unheard() {
        return unheard;
    }

    private void chunkReported(EngineCommand.Chunk chunk) {
        if (transferByPrefill.put(chunk.request(), chunk.transferId()) == null) {
            listener.prefillBegun(node.process(), chunk.request(), chunk.transferId());
        }
        reportedInStep.add(chunk.request());
        listener.prefillPagesTaken(
                node.process(),
                chunk.request(),
                chunk.promptTokens(),
                IntStream.of(chunk.pages().getFirst().indices()).boxed().toList());
        for (int layer = 0; layer < contents.size() && chunk.cachedTokens() > 0; layer++) {
            listener.layerComputed(node.process(), chunk.request(), RANK_INDEX, layer, chunk.cachedTokens());
        }
    }

    private static String describe(EngineCommand command) {
        String kind = command.getClass().getSimpleName();
        return switch (command) {
            case EngineCommand.Step step ->
                kind + " " + step.stepIndex() + " "
                        + step.chunks().stream()
                                .map(c -> c.request() + "[" + c.firstToken() + "," + c.endToken() + ")")
                                .toList();
            case EngineCommand.PrefillEnded end -> kind + " " + end.request() + " " + end.outcome();
            case EngineCommand.Fetch fetch -> kind + " " + fetch.request() + " of " + fetch.transferId();
            case EngineCommand.Abandon abandon -> kind + " " + abandon.request();
            case EngineCommand.StepEnded ended -> kind + " " + ended.stepIndex();
            case EngineCommand.StepFailed failed -> kind + " " + failed.stepIndex();
            case EngineCommand.Decline decline ->
                kind + " " + decline.transfer().id();
            case EngineCommand.Preempt preempt -> kind + " " + preempt.requests();
            default -> kind;
        };
    }

    public String poll() {
        return kept("", () -> {
            eventsWaiting = 0;
            return new String(channel.poll(POLL_CAPACITY_BYTES), StandardCharsets.UTF_8);
        });
    }

    /** True when nothing reads these requests' pages any more; else requests a fence, which resumes the engine. */
    public boolean fence(List<String> requests) {
        return kept(true, () -> {
            List<String> asked = List.copyOf(requests);
            if (asked.equals(fenced)) {
                return true;
            }
            CompletableFuture<Void> done = new CompletableFuture<>();
            // through the clock: a future would swallow a checker's exception
            var _ = done.thenRun(() -> clock.after(0, () -> fencePassed(asked)));
            submit(new EngineCommand.Preempt(asked, done));
            return false;
        });
    }

    private void fencePassed(List<String> requests) {
        if (!node.alive()) {
            return;
        }
        for (String request : requests) {
            String transferId = transferByPrefill.remove(request);
            if (transferId != null) {
                listener.prefillPagesTakenBack(node.process(), request, transferId);
            }
        }
        fenced = requests;
        onFenced.run();
    }

    public long layerCounterAddress() {
        return channel.layerCounterAddress();
    }

    // ---- pages

    public int freePages() {
        return pool.freeCount();
    }

    public int[] takePages(int count) {
        return kept(new int[0], () -> pool.take(count));
    }

    /** @param readable whether the requests that held them are fenced only before the next forward pass */
    public void givePagesBack(List<Long> pages, boolean readable) {
        kept(() -> {
            int[] freed = ints(pages);
            pool.putBack(freed);
            if (readable) {
                IntStream.of(freed).forEach(unwritten::add);
            } else {
                overwrite(freed);
            }
        });
    }

    private void overwrite(int[] pages) {
        listener.pagesOverwritten(node.process(), IntStream.of(pages).boxed().toList());
        pool.overwrite(pages);
    }

    // ---- a forward pass

    /** All fences have passed: preempted pages are overwritten from here on. */
    public void stepBegins() {
        kept(() -> {
            fenced = List.of();
            shares.clear();
            reportedInStep.clear();
            overwrite(unwritten.stream().mapToInt(page -> page).toArray());
            unwritten.clear();
        });
    }

    /** The request's first tokens were in the prefix cache. */
    public void cached(String transferId, List<Long> pages, int tokenCount) {
        kept(() -> {
            for (PageContent content : contents) {
                content.compute(memory, transferId, ints(pages), 0, tokenCount);
            }
        });
    }

    /** The forward pass computes these tokens. */
    public void share(String request, String transferId, List<Long> pages, int firstToken, int endToken) {
        kept(() -> shares.add(new Share(request, transferId, ints(pages), firstToken, endToken)));
    }

    void compute(int layer) {
        for (Share share : shares) {
            contents.get(layer).compute(memory, share.transferId, share.pages, share.firstToken, share.endToken);
            if (reportedInStep.contains(share.request)) {
                listener.layerComputed(node.process(), share.request, RANK_INDEX, layer, share.endToken);
            }
        }
    }

    /** A request was answered without an error: the KV of its prompt must match its tokens. */
    public void served(String request, String transferId, List<Long> pages, int promptTokens) {
        kept(() -> {
            trace.add(node.process(), "served", request);
            for (int layer = 0; layer < contents.size(); layer++) {
                checkServed(request, transferId, ints(pages), promptTokens, layer);
            }
        });
    }

    private void checkServed(String request, String transferId, int[] pages, int promptTokens, int layerIndex) {
        LayerGeometry layer = layers(pool).get(layerIndex);
        PageContent content = contents.get(layerIndex);
        for (int logicalPage = 0; logicalPage < pool.pagesFor(promptTokens); logicalPage++) {
            long at = layer.pageOffsetBytes(pages[logicalPage]);
            for (int b = 0; b < layer.pageBytes(); b++) {
                int token = logicalPage * pool.blockTokens() + content.tokenInPage(b);
                if (token < promptTokens
                        && memory.get(ValueLayout.JAVA_BYTE, at + b) != content.of(transferId, logicalPage, b)) {
                    throw new Violation(
                            "Served",
                            request + " was answered and its KV is wrong at token " + token + " of " + layer.name());
                }
            }
        }
    }

    // ---- the log

    /** @param exception Python traceback of what the connector caught, or null */
    public void log(String level, String message, String exception) {
        kept(() -> {
            trace.add(node.process(), "log" + level, message);
            if (exception != null) {
                throw new Violation("Python", message + "\n" + exception);
            }
        });
    }

    public void note(String kind, String detail) {
        trace.add(node.process(), kind, detail);
    }

    // ---- what the messenger tells

    public double nowSeconds() {
        return clock.nowNs() / 1e9;
    }

    public double fetchLimitSeconds() {
        return fetchLimitNs / 1e9;
    }

    boolean hasEvents() {
        return eventsWaiting > 0;
    }

    EngineEvents events() {
        return new Events();
    }

    /** Reports to the world when the messenger sends an event; Python receives it at its next poll. */
    private final class Events implements EngineEvents {
        private final EngineEvents queue = channel.events();

        @Override
        public void released(String request) {
            trace.add(node.process(), "released", request);
            listener.prefillReleased(node.process(), request);
            eventsWaiting++;
            queue.released(request);
        }

        @Override
        public void arrived(String request, int pageCount) {
            trace.add(node.process(), "arrived", request);
            fetching.remove(request);
            listener.fetchArrived(node.process(), request, pageCount);
            eventsWaiting++;
            queue.arrived(request, pageCount);
        }

        @Override
        public void failed(String request, String reason) {
            trace.add(node.process(), "failed", request + ": " + reason);
            if (fetching.remove(request) || !askedFor.remove(request)) { // else its end is reported again
                listener.fetchFailed(node.process(), request, reason);
            }
            eventsWaiting++;
            queue.failed(request, reason);
        }

        @Override
        public void quarantined(String request, String reason) {
            trace.add(node.process(), "quarantined", request + ": " + reason);
            listener.fetchQuarantined(node.process(), request, reason);
            eventsWaiting++;
            queue.quarantined(request, reason);
        }

        @Override
        public void prefilled(TransferKey transfer) {
            trace.add(node.process(), "prefilled", transfer.id());
            eventsWaiting++;
            queue.prefilled(transfer);
        }

        @Override
        public void timeline(PrefillTimeline timeline) {
            trace.add(node.process(), "sent", timeline.request());
            listener.prefillSent(node.process(), timeline.request(), timeline.transferId());
            queue.timeline(timeline);
        }

        @Override
        public void timeline(FetchTimeline timeline) {
            queue.timeline(timeline);
        }

        @Override
        public void log(Level level, String message) {
            queue.log(level, message);
        }
    }

    private static List<LayerGeometry> layers(PagePool pool) {
        return pool.geometry().ranks().get(RANK_INDEX).layers();
    }

    private static int[] ints(List<Long> pages) {
        return pages.stream().mapToInt(Long::intValue).toArray();
    }
}
