package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.testkit.sim.PrefillPrompt.State;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * A prefiller's inference engine: computes prompts in chunks, layer by layer, increments the layer counter, preempts
 * and aborts.
 */
final class SimulatedPrefillEngine implements EngineIntake {
    private static final int PROMPTS_PER_STEP_MAX = 3;
    /** Time within which aborts and preemptions happen: comparable to the computation of most prompts. */
    private static final long FATE_WITHIN_NS = 3 * Scenario.MILLI;

    /** How much longer an announced prompt waits for its grant than the decoder's queue lasts: above any fetch. */
    private static final long UNGRANTED_SLACK_NS = 180 * Scenario.MILLI;

    /** Passes a prompt to all messengers of the engine. */
    interface Intake {
        void enqueue(TransferKey transfer, int tokenCount);
    }

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Swarm swarm;
    private final SplittableRandom random;
    /** Source of the delays between ranks. */
    private final SplittableRandom apart;

    private final WorldListener listener;
    private final Mutation mutation;
    private final Intake intake;
    private final Map<String, PrefillPrompt> prompts = new LinkedHashMap<>();
    private final PrefillPages pages;
    private final SimulatedSource source;
    private final int pageTokens;

    private final ComputedLayers layers;
    private final int layerCount;
    private final SimulatedDevice device;
    private long stepIndex;

    /** Waits for grants before it computes, and reports some passes only when they are over, as SGLang does. */
    private final boolean announces;

    private final long ungrantedLimitNs;
    /** How long a prompt is queued after all faults; 0 if the messenger is not told about queued prompts. */
    private final long queuedNs;
    /** No pass is planned until the device has room for one. */
    private boolean waitsForDevice;

    private boolean healed;
    private long lastEnqueued;

    SimulatedPrefillEngine(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            Scenario scenario,
            SplittableRandom random,
            WorldListener listener,
            Mutation mutation,
            Intake intake,
            Supplier<List<SimulatedSource>> sources,
            Runnable onFreed) {
        this.clock = clock;
        this.node = node;
        this.pool = pool;
        this.swarm = scenario.swarm();
        this.random = random;
        this.apart = new SplittableRandom(swarm.hashCode() * 31L + node.incarnation());
        this.listener = listener;
        this.mutation = mutation;
        this.announces = scenario.announces();
        this.ungrantedLimitNs = scenario.queuedNs() + UNGRANTED_SLACK_NS;
        this.queuedNs = scenario.traffic().announces() ? scenario.queuedNs() : 0;
        this.intake = intake;
        this.pageTokens = pool.blockTokens();
        this.device = new SimulatedDevice(clock, node, pool, swarm, apart, listener, mutation, this::onDone);
        this.pages = new PrefillPages(node, pool, device, listener, mutation, onFreed);
        this.source = new SimulatedSource(clock, node, pool, pages, sources, scenario, listener, mutation);
        this.layers = device.layers();
        this.layerCount = layers.count();
        pool.promise(this::promisedPages);
        scheduleStep();
    }

    void heal() {
        healed = true;
        source.heal();
    }

    // ---- requests

    void enqueue(TransferKey transfer, int tokenCount) {
        PrefillPrompt prompt = new PrefillPrompt(transfer, tokenCount, ++lastEnqueued);
        prompts.put(prompt.request, prompt);
        if (announces || queuedNs > 0) {
            prompt.reported = true;
            prompt.queuedUntilNs = healed ? clock.nowNs() + queuedNs : 0;
            node.command(new EngineCommand.Announce(prompt.request, transfer.id(), transfer.digest()));
        }
        if (announces) {
            clock.after(ungrantedLimitNs, () -> node.whenRunning(() -> endUngranted(prompt)));
        }
        drawFate(prompt);
    }

    /** Gives up like an engine that waits for the decoder's grant in a queue of its own. */
    private void endUngranted(PrefillPrompt prompt) {
        if (node.alive() && prompt.state == State.QUEUED && !prompt.granted) {
            end(prompt, PrefillOutcome.ABORTED);
        }
    }

    void granted(String request) {
        PrefillPrompt prompt = prompts.get(request);
        if (prompt != null) {
            prompt.granted = true;
        }
    }

    void stopped(String request) {
        PrefillPrompt prompt = prompts.get(request);
        if (prompt != null) {
            prompt.stopped = true;
            clock.after(random.nextLong(300 * Scenario.MICRO), () -> node.whenRunning(() -> endStopped(prompt)));
        }
    }

    private void endStopped(PrefillPrompt prompt) {
        boolean endable = prompt.state != State.FENCING && prompt.state != State.ENDED;
        if (node.alive() && endable && prompts.containsKey(prompt.request)) {
            end(prompt, PrefillOutcome.ABORTED);
        }
    }

    @Override
    public boolean takesPrompts() {
        return true;
    }

    @Override
    public boolean takesQuestions() {
        return true;
    }

    @Override
    public void enqueue(TransferKey transfer, EngineCommand.Prompt prompt) {
        String name = PromptName.of(transfer);
        listener.promptEnqueued(node.process(), name);
        boolean fails = !healed && random.nextDouble() < swarm.enqueueFails();
        clock.after(random.nextLong(2 * Scenario.MILLI), () -> {
            if (!node.alive()) {
                return;
            }
            if (fails) {
                listener.promptRefused(node.process(), name);
                node.input(m -> node.cache().onEnqueueFailed(transfer, "the engine's API refused it"));
            } else {
                intake.enqueue(transfer, prompt.tokenIds().length);
            }
        });
    }

    @Override
    public void ask(TransferKey transfer, EngineCommand.Prompt prompt) {
        source.ask(transfer, prompt.tokenIds().length);
    }

    /** A question costs nothing here. */
    @Override
    public void endAsk(TransferKey transfer) {}

    /** What this messenger's part of the engine answers to peers' questions. */
    SimulatedSource source() {
        return source;
    }

    int unendedCount() {
        return prompts.size() + source.heldCount();
    }

    String describeUnended() {
        return prompts.values().stream().map(p -> p.request + " " + p.state).toList() + " and " + source.heldCount()
                + " offered";
    }

    void released(String request) {
        listener.prefillReleased(node.process(), request);
        if (source.released(request)) {
            return;
        }
        PrefillPrompt prompt = prompts.remove(request);
        if (prompt != null) {
            pool.context().giveBack(prompt.contextSlot);
            pages.giveBack(prompt);
        }
    }

    // ---- faults

    /** Decides, for a new or restarted prompt, whether and when a fault happens to it. */
    private void drawFate(PrefillPrompt prompt) {
        if (!healed && random.nextDouble() < swarm.prefillAbort() * 0.5) {
            clock.after(random.nextLong(FATE_WITHIN_NS), () -> node.whenRunning(() -> abort(prompt)));
        }
        if (!healed && random.nextDouble() < swarm.preempt()) {
            clock.after(random.nextLong(FATE_WITHIN_NS), () -> node.whenRunning(() -> preempt(prompt)));
        }
    }

    private void abort(PrefillPrompt prompt) {
        boolean abortable = prompt.state != State.FENCING && prompt.state != State.ENDED;
        if (healed || !abortable || !node.alive()) {
            return;
        }
        if (prompt.state == State.QUEUED && !prompt.reported && random.nextBoolean()) {
            prompts.remove(prompt.request); // never scheduled: the connector learns nothing of it
        } else {
            end(prompt, random.nextInt(4) == 0 ? PrefillOutcome.FAILED : PrefillOutcome.ABORTED);
        }
    }

    /** Preempts a prompt, and sometimes all running ones, with a single fence. */
    private void preempt(PrefillPrompt prompt) {
        boolean all = random.nextInt(4) == 0;
        boolean alsoInStep = random.nextDouble() < swarm.preemptInStep();
        List<PrefillPrompt> chosen = prompts.values().stream()
                .filter(p -> all || p == prompt)
                .filter(p -> p.state == State.BETWEEN_STEPS || (alsoInStep && p.state == State.IN_STEP))
                .toList();
        if (healed || chosen.isEmpty() || !node.alive()) {
            return;
        }
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        for (PrefillPrompt each : chosen) {
            each.state = State.FENCING;
            each.granted = false;
        }
        // through the clock: a future would swallow a checker's exception
        var _ = fenced.thenRun(() -> clock.after(0, () -> chosen.forEach(this::takeBack)));
        node.command(
                new EngineCommand.Preempt(chosen.stream().map(p -> p.request).toList(), fenced));
    }

    private void takeBack(PrefillPrompt prompt) {
        if (!node.alive()) {
            return;
        }
        listener.prefillPagesTakenBack(node.process(), prompt.request, prompt.name);
        pages.giveBack(prompt);
        prompt.state = State.QUEUED;
        if (prompt.stopped) {
            endStopped(prompt);
        } else {
            drawFate(prompt);
            if (announces) {
                clock.after(ungrantedLimitNs, () -> node.whenRunning(() -> endUngranted(prompt)));
            }
        }
    }

    private void end(PrefillPrompt prompt, PrefillOutcome outcome) {
        prompt.state = State.ENDED;
        listener.prefillEnded(node.process(), prompt.request, prompt.name, outcome);
        if (outcome == PrefillOutcome.FINISHED) {
            leaveContext(prompt);
        }
        node.command(new EngineCommand.PrefillEnded(prompt.request, outcome, prompt.contextSlot));
    }

    private void leaveContext(PrefillPrompt prompt) {
        prompt.contextSlot = pool.context().take();
        if (prompt.contextSlot != ContextSlots.NO_SLOT) {
            pool.context().write(prompt.contextSlot, prompt.name);
            listener.contextLeft(node.process(), prompt.request, prompt.contextSlot);
        }
    }

    // ---- forward passes

    private void scheduleStep() {
        clock.after(random.nextLong(600 * Scenario.MICRO), () -> node.whenRunning(this::beginStep));
    }

    private void beginStep() {
        if (!node.alive()) {
            return;
        }
        ForwardPass pass = null;
        for (PrefillPrompt prompt : SimulatedFabric.shuffled(List.copyOf(prompts.values()), random)) {
            boolean runnable = prompt.state == State.BETWEEN_STEPS || mayStart(prompt);
            if (runnable && (pass == null || pass.parts.size() < PROMPTS_PER_STEP_MAX) && random.nextInt(4) > 0) {
                pass = pass == null ? drawPass(!announces || apart.nextBoolean(), true) : pass;
                beginChunk(prompt, pass);
            }
        }
        if (pass == null && device.runsBehind() && random.nextInt(4) == 0) {
            pass = drawPass(false, false);
        }
        if (pass == null) {
            scheduleStep();
        } else {
            run(pass);
        }
    }

    private void run(ForwardPass pass) {
        device.queue(pass);
        if (pass.reported()) {
            node.command(new EngineCommand.Step(pass.step, pass.counterStart, List.copyOf(pass.chunks)));
        } else if (mutation == Mutation.COMPUTED_REPORTED_EARLY) {
            reportAfterwards(pass);
        }
        if (device.runsBehind()) {
            clock.after(random.nextLong(50 * Scenario.MICRO), () -> node.whenRunning(() -> onQueued(pass)));
        }
    }

    /** A pass without prompts to send computes only decodes. */
    private ForwardPass drawPass(boolean reported, boolean sends) {
        boolean unhooked = random.nextDouble() < swarm.unhookedLayers();
        int hookedCount = Math.min(unhooked ? random.nextInt(layerCount + 1) : layerCount, layers.countedCount());
        boolean fails = sends && !healed && random.nextDouble() < swarm.stepFails() * 0.2;
        int computedCount = fails ? random.nextInt(layerCount + 1) : layerCount;
        return new ForwardPass(reported ? ++stepIndex : 0, hookedCount, computedCount, fails);
    }

    /** The engine has queued the pass to its end, and plans the next one. */
    private void onQueued(ForwardPass pass) {
        if (!node.alive()) {
            return;
        }
        if (pass.fails) {
            fail(pass);
        } else {
            reportEnd(pass);
        }
        waitsForDevice = device.full();
        if (!waitsForDevice) {
            scheduleStep();
        }
    }

    private void reportEnd(ForwardPass pass) {
        if (pass.reported()) {
            node.command(new EngineCommand.StepEnded(pass.step, pass.counterEnd));
        }
        for (ForwardPass.Part part : pass.parts) {
            PrefillPrompt prompt = prompts.get(part.request());
            if (prompt != null && prompt.lastPass == pass && prompt.state == State.IN_STEP) {
                prompt.computedTokens = prompt.endToken;
                prompt.state = prompt.endToken < prompt.tokenCount ? State.BETWEEN_STEPS : State.IN_STEP;
            }
        }
    }

    /** The pass threw; sometimes that is not reported, and the step is abandoned when others have begun. */
    private void fail(ForwardPass pass) {
        if (pass.reported() && apart.nextInt(4) > 0) {
            node.command(new EngineCommand.StepFailed(pass.step));
        }
        for (ForwardPass.Part part : pass.parts) {
            PrefillPrompt prompt = prompts.get(part.request());
            if (prompt != null && prompt.lastPass == pass && prompt.state == State.IN_STEP) {
                end(prompt, PrefillOutcome.FAILED);
            }
        }
        pages.passFailed(pass);
    }

    /** A pass that was not reported before it ran: its chunks are reported one by one when they are in place. */
    private void reportAfterwards(ForwardPass pass) {
        for (EngineCommand.Chunk chunk : pass.chunks) {
            PrefillPrompt prompt = prompts.get(chunk.request());
            if (prompt != null && prompt.computes(pass)) {
                prompt.reportedTokens = Math.max(prompt.reportedTokens, chunk.endToken());
                prompt.reportedPages = Math.max(prompt.reportedPages, pool.pagesFor(chunk.endToken()));
                node.command(new EngineCommand.Computed(new EngineCommand.Chunk(
                        chunk.request(),
                        chunk.transferId(),
                        chunk.promptTokens(),
                        0,
                        0,
                        chunk.endToken(),
                        chunk.pages(),
                        chunk.promptDigest())));
            }
        }
    }

    /** A prompt starts only if all started prompts can be finished with the pages there are. */
    private boolean mayStart(PrefillPrompt prompt) {
        return prompt.state == State.QUEUED
                && (prompt.granted || !announces)
                && clock.nowNs() >= prompt.queuedUntilNs
                && pool.spareCount() >= pool.pagesFor(prompt.tokenCount);
    }

    private int promisedPages() {
        return prompts.values().stream()
                .filter(p -> p.state == State.BETWEEN_STEPS || p.state == State.IN_STEP)
                .mapToInt(p -> pool.pagesFor(p.tokenCount) - p.pages.length)
                .sum();
    }

    private void beginChunk(PrefillPrompt prompt, ForwardPass pass) {
        boolean first = prompt.state == State.QUEUED;
        prompt.reported = true;
        int writtenTokens = first ? pages.begin(prompt, random) : prompt.reportedTokens;
        int chunkTokens = 1 + random.nextInt(3 * pageTokens + 2);
        prompt.endToken = Math.min(prompt.tokenCount, prompt.computedTokens + chunkTokens);
        pages.take(prompt, pass);
        if (first) {
            pages.computeCached(prompt);
        }
        PassShare share = new PassShare(prompt.name, prompt.pages, prompt.computedTokens, prompt.endToken, pageTokens);
        pass.parts.add(new ForwardPass.Part(prompt.request, share, prompt.endToken));
        prompt.lastPass = pass;
        prompt.state = State.IN_STEP;
        pass.chunks.add(new EngineCommand.Chunk(
                prompt.request,
                prompt.transfer.id(),
                prompt.tokenCount,
                first ? writtenTokens : 0,
                writtenTokens,
                prompt.endToken,
                pool.blocks().reported(prompt.reportedPages, prompt.pages, mutation == Mutation.GROUPS_MIXED),
                prompt.transfer.digest()));
        if (pass.reported()) {
            prompt.reportedTokens = prompt.endToken;
            prompt.reportedPages = prompt.pages.length;
        }
    }

    /** The device has finished a pass, or has stopped where it failed. */
    private void onDone(ForwardPass pass) {
        if (!node.alive()) {
            return;
        }
        if (!device.runsBehind()) {
            if (pass.fails) {
                fail(pass);
            } else {
                reportEnd(pass);
            }
            scheduleStep();
        } else if (waitsForDevice) {
            waitsForDevice = false;
            scheduleStep();
        }
        if (!pass.fails) {
            conclude(pass);
        }
    }

    private void conclude(ForwardPass pass) {
        if (!pass.reported()) {
            reportAfterwards(pass);
        }
        for (ForwardPass.Part part : pass.parts) {
            PrefillPrompt prompt = prompts.get(part.request());
            boolean last = prompt != null && prompt.lastPass == pass && prompt.endToken == prompt.tokenCount;
            if (last && prompt.state == State.IN_STEP) {
                prompt.state = State.COMPUTED;
                clock.after(
                        random.nextLong(300 * Scenario.MICRO),
                        () -> node.whenRunning(() -> {
                            if (prompt.state == State.COMPUTED && node.alive()) {
                                end(prompt, PrefillOutcome.FINISHED);
                            }
                        }));
            }
        }
        pages.passEnded(pass);
    }

    /** The layer counter as the messenger sees it. */
    LayerProgress progress() {
        return device.counter();
    }
}
