package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.EngineCommand;
import io.kvmessenger.messenger.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.EngineIntake;
import io.kvmessenger.messenger.LayerProgress;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;

/**
 * A prefiller's inference engine: computes prompts in chunks, layer by layer, bumps the layer counter, preempts and
 * aborts; gives pages to the next owner in the moment in which it has them back.
 */
final class SimulatedPrefillEngine implements EngineIntake {
    private static final int PROMPTS_PER_STEP_MAX = 3;
    /** Aborts and preemptions come that soon: most prompts are computed in about that time. */
    private static final long FATE_WITHIN_NS = 3 * Scenario.MILLI;

    /** Gives a prompt to all messengers of the engine. */
    interface Intake {
        void enqueue(String transferId, int tokenCount);
    }

    private enum State {
        QUEUED,
        BETWEEN_STEPS,
        IN_STEP,
        COMPUTED,
        FENCING,
        ENDED
    }

    private static final class Prompt {
        final String request;
        final String transferId;
        final int tokenCount;
        int[] pages = new int[0];
        int computedTokens;
        int endToken;
        State state = State.QUEUED;
        /** The messenger knows of it, and must be told of its end. */
        boolean told;

        Prompt(String request, String transferId, int tokenCount) {
            this.request = request;
            this.transferId = transferId;
            this.tokenCount = tokenCount;
        }
    }

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Swarm swarm;
    private final SplittableRandom random;
    /** Draws when ranks are behind each other. */
    private final SplittableRandom apart;

    private final WorldListener listener;
    private final Intake intake;
    private final Map<String, Prompt> prompts = new LinkedHashMap<>();
    /** What the running pass computes: also prompts that were preempted or aborted in it, while they have pages. */
    private final List<Prompt> inStep = new ArrayList<>();

    private final ComputedLayers layers;
    private final int layerCount;
    private long counter;
    private long stepIndex;
    private int hookedLayers;
    /** Layers of the running pass that all ranks have. */
    private int settledLayers;

    private boolean healed;
    private long lastEnqueued;

    SimulatedPrefillEngine(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            Swarm swarm,
            SplittableRandom random,
            WorldListener listener,
            Intake intake) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.swarm = swarm;
        this.random = random;
        this.apart = new SplittableRandom(swarm.hashCode() * 31L + node.incarnation());
        this.listener = listener;
        this.intake = intake;
        this.layers = ComputedLayers.of(pool.geometry());
        this.layerCount = layers.count();
        pool.promise(this::promisedPages);
        scheduleStep();
    }

    void heal() {
        healed = true;
    }

    // ---- requests

    void enqueue(String transferId, int tokenCount) {
        String request = transferId + "/p" + ++lastEnqueued;
        Prompt prompt = new Prompt(request, transferId, tokenCount);
        prompts.put(request, prompt);
        drawFate(prompt);
    }

    @Override
    public boolean available() {
        return true;
    }

    @Override
    public void enqueue(String transferId, EngineCommand.Prompt prompt) {
        listener.promptEnqueued(node.process(), transferId);
        boolean fails = !healed && random.nextDouble() < swarm.enqueueFails();
        clock.after(random.nextLong(2 * Scenario.MILLI), () -> {
            if (!node.alive()) {
                return;
            }
            if (fails) {
                listener.promptRefused(node.process(), transferId);
                node.input(m -> m.onEnqueueFailed(transferId, "the engine's API refused it"));
            } else {
                intake.enqueue(transferId, prompt.tokenIds().length);
            }
        });
    }

    int unendedCount() {
        return prompts.size();
    }

    String describeUnended() {
        return prompts.values().stream()
                .map(p -> p.request + " " + p.state)
                .toList()
                .toString();
    }

    void released(String request) {
        listener.prefillReleased(node.process(), request);
        Prompt prompt = prompts.remove(request);
        if (prompt != null) {
            inStep.remove(prompt);
            pool.giveBack(prompt.pages);
        }
    }

    // ---- faults

    /** Decides, when a prompt is new or begins anew, whether and when something happens to it. */
    private void drawFate(Prompt prompt) {
        if (!healed && random.nextDouble() < swarm.prefillAbort() * 0.5) {
            clock.after(random.nextLong(FATE_WITHIN_NS), () -> node.whenRunning(() -> abort(prompt)));
        }
        if (!healed && random.nextDouble() < swarm.preempt()) {
            clock.after(random.nextLong(FATE_WITHIN_NS), () -> node.whenRunning(() -> preempt(prompt)));
        }
    }

    private void abort(Prompt prompt) {
        boolean abortable = prompt.state != State.FENCING && prompt.state != State.ENDED;
        if (healed || !abortable || !node.alive()) {
            return;
        }
        if (prompt.state == State.QUEUED && !prompt.told && random.nextBoolean()) {
            prompts.remove(prompt.request); // never scheduled: the connector hears nothing of it
        } else {
            end(prompt, random.nextInt(4) == 0 ? PrefillOutcome.FAILED : PrefillOutcome.ABORTED);
        }
    }

    /** Preempts a prompt, and sometimes all that run: one fence for all of them. */
    private void preempt(Prompt prompt) {
        boolean all = random.nextInt(4) == 0;
        boolean alsoInStep = random.nextDouble() < swarm.preemptInStep();
        List<Prompt> chosen = prompts.values().stream()
                .filter(p -> all || p == prompt)
                .filter(p -> p.state == State.BETWEEN_STEPS || (alsoInStep && p.state == State.IN_STEP))
                .toList();
        if (healed || chosen.isEmpty() || !node.alive()) {
            return;
        }
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        for (Prompt each : chosen) {
            each.state = State.FENCING;
        }
        // by way of the clock: a future would swallow what a checker throws
        var _ = fenced.thenRun(() -> clock.after(0, () -> chosen.forEach(this::takeBack)));
        node.command(
                new EngineCommand.Preempt(chosen.stream().map(p -> p.request).toList(), fenced));
    }

    private void takeBack(Prompt prompt) {
        if (!node.alive()) {
            return;
        }
        inStep.remove(prompt);
        listener.prefillPagesTakenBack(node.process(), prompt.request, prompt.transferId);
        pool.giveBack(prompt.pages);
        prompt.pages = new int[0];
        prompt.computedTokens = 0;
        prompt.state = State.QUEUED;
        drawFate(prompt);
    }

    private void end(Prompt prompt, PrefillOutcome outcome) {
        prompt.state = State.ENDED;
        listener.prefillEnded(node.process(), prompt.request, prompt.transferId, outcome);
        node.command(new EngineCommand.PrefillEnded(prompt.request, outcome));
    }

    // ---- forward passes

    private void scheduleStep() {
        clock.after(random.nextLong(600 * Scenario.MICRO), () -> node.whenRunning(this::beginStep));
    }

    private void beginStep() {
        if (!node.alive()) {
            return;
        }
        List<EngineCommand.Chunk> chunks = new ArrayList<>();
        for (Prompt prompt : SimulatedFabric.shuffled(List.copyOf(prompts.values()), random)) {
            boolean runnable = prompt.state == State.BETWEEN_STEPS || mayStart(prompt);
            if (runnable && chunks.size() < PROMPTS_PER_STEP_MAX && random.nextInt(4) > 0) {
                chunks.add(beginChunk(prompt));
            }
        }
        if (chunks.isEmpty()) {
            scheduleStep();
            return;
        }
        boolean unhooked = random.nextDouble() < swarm.unhookedLayers();
        hookedLayers = Math.min(unhooked ? random.nextInt(layerCount + 1) : layerCount, layers.countedCount());
        settledLayers = 0;
        node.command(new EngineCommand.Step(++stepIndex, counter, chunks));
        scheduleLayers(0);
    }

    /** A prompt starts only when all prompts that have started can be finished with the pages there are. */
    private boolean mayStart(Prompt prompt) {
        return prompt.state == State.QUEUED && pool.spareCount() >= pool.pagesFor(prompt.tokenCount);
    }

    private int promisedPages() {
        return prompts.values().stream()
                .filter(p -> p.state == State.BETWEEN_STEPS || p.state == State.IN_STEP)
                .mapToInt(p -> pool.pagesFor(p.tokenCount) - p.pages.length)
                .sum();
    }

    private EngineCommand.Chunk beginChunk(Prompt prompt) {
        int cachedTokens = 0;
        if (prompt.state == State.QUEUED && random.nextInt(3) == 0) {
            int pageTokens = pool.geometry().pageTokens();
            cachedTokens = random.nextInt((prompt.tokenCount - 1) / pageTokens + 1) * pageTokens;
        }
        boolean first = prompt.state == State.QUEUED;
        prompt.told = true;
        int firstToken = first ? cachedTokens : prompt.computedTokens;
        int chunkTokens = 1 + random.nextInt(3 * pool.geometry().pageTokens() + 2);
        prompt.endToken = Math.min(prompt.tokenCount, firstToken + chunkTokens);
        if (first) {
            listener.prefillBegun(node.process(), prompt.request, prompt.transferId);
        }
        int[] newPages = pool.take(pool.pagesFor(prompt.endToken) - prompt.pages.length);
        int had = prompt.pages.length;
        prompt.pages = Arrays.copyOf(prompt.pages, had + newPages.length);
        System.arraycopy(newPages, 0, prompt.pages, had, newPages.length);
        listener.prefillPagesTaken(
                node.process(),
                prompt.request,
                prompt.tokenCount,
                IntStream.of(newPages).boxed().toList());
        prompt.computedTokens = firstToken;
        prompt.state = State.IN_STEP;
        inStep.add(prompt);
        for (int layer = 0; layer < layerCount && cachedTokens > 0; layer++) {
            compute(prompt, layers.at(layer), 0, cachedTokens);
        }
        return new EngineCommand.Chunk(
                prompt.request,
                prompt.transferId,
                prompt.tokenCount,
                cachedTokens,
                firstToken,
                prompt.endToken,
                had,
                newPages);
    }

    private void compute(Prompt prompt, List<ComputedLayers.RankLayer> parts, int firstToken, int endToken) {
        for (ComputedLayers.RankLayer at : parts) {
            at.content()
                    .compute(
                            pool.memories().get(at.rankIndex()), prompt.transferId, prompt.pages, firstToken, endToken);
            listener.layerComputed(node.process(), prompt.request, at.rankIndex(), at.layerIndex(), endToken);
        }
    }

    private void scheduleLayers(int fromLayer) {
        clock.after(10 * Scenario.MICRO + random.nextLong(150 * Scenario.MICRO), () -> fireLayers(fromLayer));
    }

    /** The device goes on also while the process stands still. */
    private void fireLayers(int fromLayer) {
        if (!node.alive()) {
            return;
        }
        int jump = random.nextDouble() < swarm.counterJump() ? 1 + random.nextInt(layerCount) : 1;
        int toLayer = Math.min(layerCount, fromLayer + jump);
        for (int layer = fromLayer; layer < toLayer; layer++) {
            settleLayersBefore(layer); // what the first rank computes now needs them
            computeInStep(layers.firstAt(layer));
            if (layer < hookedLayers) {
                counter++;
            }
        }
        if (apart.nextBoolean()) {
            settleLayersBefore(toLayer);
        }
        if (toLayer < layerCount) {
            scheduleLayers(toLayer);
        } else {
            clock.after(random.nextLong(200 * Scenario.MICRO), this::finishPass);
        }
    }

    private void finishPass() {
        if (node.alive()) {
            settleLayersBefore(layerCount);
        }
        node.whenRunning(this::endStep);
    }

    /** The ranks that were behind have these layers too. */
    private void settleLayersBefore(int toLayer) {
        while (settledLayers < toLayer) {
            computeInStep(layers.laterAt(settledLayers++));
        }
    }

    private void computeInStep(List<ComputedLayers.RankLayer> parts) {
        for (Prompt prompt : inStep) {
            compute(prompt, parts, prompt.computedTokens, prompt.endToken);
        }
    }

    private void endStep() {
        if (!node.alive()) {
            return;
        }
        if (!healed && random.nextDouble() < swarm.stepFails() * 0.2) {
            inStep.stream() // the pass threw: its end is never told
                    .filter(prompt -> prompt.state == State.IN_STEP)
                    .forEach(prompt -> end(prompt, PrefillOutcome.FAILED));
            inStep.clear();
            scheduleStep();
            return;
        }
        node.command(new EngineCommand.StepEnded(stepIndex));
        for (Prompt prompt : inStep) {
            if (prompt.state != State.IN_STEP) {
                continue;
            }
            prompt.computedTokens = prompt.endToken;
            if (prompt.computedTokens == prompt.tokenCount) {
                prompt.state = State.COMPUTED;
                clock.after(
                        random.nextLong(300 * Scenario.MICRO),
                        () -> node.whenRunning(() -> {
                            if (prompt.state == State.COMPUTED && node.alive()) {
                                end(prompt, PrefillOutcome.FINISHED);
                            }
                        }));
            } else {
                prompt.state = State.BETWEEN_STEPS;
            }
        }
        inStep.clear();
        scheduleStep();
    }

    /** How the messenger sees the layer counter. */
    LayerProgress progress() {
        return new LayerProgress() {
            private long counterStart;
            private boolean running;

            @Override
            public void stepBegan(long step, long start) {
                counterStart = start;
                running = true;
            }

            @Override
            public int readableLayerCount() {
                return running ? Math.clamp(counter - counterStart - layers.counterLag(), 0, layerCount) : 0;
            }

            @Override
            public void stepEnded(long step) {
                running = false;
            }

            @Override
            public void stepAbandoned() {
                running = false;
            }
        };
    }
}
