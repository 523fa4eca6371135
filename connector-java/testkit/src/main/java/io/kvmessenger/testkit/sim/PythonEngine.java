package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.check.Violation;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/**
 * An engine whose scheduler and connector are Python: passes requests to it, lets time pass between the parts of its
 * steps, and draws its faults. It makes no decisions about blocks or transfers.
 *
 * <p>Like vLLM's core it steps only while it has work, which exposes reports that nothing waits for.
 */
final class PythonEngine implements NodeEngine, EngineIntake {
    private static final long STEP_PAUSE_NS = 600 * Scenario.MICRO;
    private static final long FATE_WITHIN_NS = 5 * Scenario.MILLI;

    private final Simulation world;
    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final PagePool pool;
    private final Swarm swarm;
    private final SplittableRandom random;
    private final PythonHost host;
    private final JepInterpreter python;
    private final EngineEvents events;
    private final LayerProgress progress;
    private final int engine;
    private final int layerCount;

    private boolean healed;
    private boolean stepPlanned;
    /** The last step did nothing, and the engine has received nothing since. */
    private boolean quiet;

    private List<Integer> layerOrder = List.of();
    private int hookedLayers;

    PythonEngine(
            Simulation world,
            SimulatedNode node,
            PagePool pool,
            SplittableRandom random,
            PythonHost host,
            JepInterpreter python,
            int engine,
            LayerProgress progress) {
        this.world = world;
        this.clock = world.clock();
        this.node = node;
        this.pool = pool;
        this.swarm = world.scenario().swarm();
        this.random = random.split();
        this.host = host;
        this.python = python;
        this.engine = engine;
        this.events = host.events();
        this.progress = progress;
        this.layerCount = layers().size();
        host.onFenced(() -> node.whenRunning(() -> began("resume")));
        python.invoke(
                "start_engine",
                engine,
                host,
                node.name(),
                Long.toString(node.incarnation()),
                pool.blockTokens(),
                pool.pageCount(),
                layers().stream().map(LayerGeometry::name).toList(),
                random.nextLong());
    }

    private List<LayerGeometry> layers() {
        return pool.geometry().ranks().getFirst().layers();
    }

    private Object call(String method, Object... arguments) {
        Object[] all = new Object[arguments.length + 2];
        all[0] = engine;
        all[1] = method;
        System.arraycopy(arguments, 0, all, 2, arguments.length);
        try {
            return python.invoke("call", all);
        } catch (JepInterpreter.PythonFault e) {
            host.rethrow();
            Violation violation = new Violation("Python", e.getMessage());
            violation.initCause(e.getCause());
            throw violation;
        } finally {
            quiet = false;
        }
    }

    private Object checked(String method, Object... arguments) {
        Object answer = call(method, arguments);
        host.rethrow();
        return answer;
    }

    // ---- requests

    @Override
    public void prefill(TransferKey transfer, int promptTokens) {
        prefill(transfer.id(), promptTokens);
    }

    private void prefill(String transferId, int promptTokens) {
        String request = (String) checked("prefill", transferId, promptTokens);
        drawAbort(request, swarm.prefillAbort() * 0.5);
        if (!healed && random.nextDouble() < swarm.preempt()) {
            later(FATE_WITHIN_NS, () -> checked("preempt_soon", request));
        }
        wake();
    }

    @Override
    public void decode(
            TransferKey transfer, List<PrefillerAddress> prefillers, int promptTokens, boolean decoderFirst) {
        String transferId = transfer.id();
        String prefiller = prefillers.getFirst().host(); // all engines of its world have one messenger
        boolean garbled = !healed && random.nextDouble() < swarm.wrongPrompt();
        if (!decoderFirst && !garbled) {
            host.expectWord(transferId);
        }
        String request = (String) checked("decode", transferId, prefiller, promptTokens, decoderFirst, garbled);
        drawAbort(request, swarm.fetchAbandon());
        if (!healed && random.nextDouble() < swarm.preempt()) {
            later(4 * FATE_WITHIN_NS, () -> checked("preempt_soon", request));
        }
        wake();
    }

    @Override
    public void reject(String transferId, List<PrefillerAddress> prefillers) {
        throw new UnsupportedOperationException("no request is rejected where the connector in Python runs");
    }

    private void drawAbort(String request, double rate) {
        if (!healed && random.nextDouble() < rate) {
            later(FATE_WITHIN_NS, () -> checked("abort", request));
        }
    }

    private void later(long withinNs, Runnable action) {
        clock.after(
                random.nextLong(withinNs),
                () -> node.whenRunning(() -> {
                    if (node.alive() && !healed) {
                        action.run();
                        wake();
                    }
                }));
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
        String transferId = transfer.id();
        world.listener().promptEnqueued(node.process(), transferId);
        boolean fails = !healed && random.nextDouble() < swarm.enqueueFails();
        clock.after(random.nextLong(2 * Scenario.MILLI), () -> {
            if (!node.alive()) {
                return;
            }
            if (fails) {
                world.listener().promptRefused(node.process(), transferId);
                node.input(m -> node.cache().onEnqueueFailed(transfer, "the engine's API refused it"));
            } else {
                prefill(transferId, prompt.tokenIds().length);
            }
        });
    }

    @Override
    public void ask(TransferKey transfer, EngineCommand.Prompt prompt) {
        node.input(m -> node.cache().onEnqueueFailed(transfer, "the simulated engine answers no questions"));
    }

    @Override
    public void endAsk(TransferKey transfer) {}

    // ---- steps

    private void wake() {
        if (!stepPlanned) {
            stepPlanned = true;
            clock.after(random.nextLong(STEP_PAUSE_NS), () -> node.whenRunning(this::beginStep));
        }
    }

    private void beginStep() {
        if (!node.alive()) {
            return;
        }
        stepPlanned = false;
        if (quiet && !host.hasEvents()) {
            wake();
        } else {
            stepPlanned = true;
            began("begin");
        }
    }

    /** Python has planned a step; it runs when the pages of the requests that it preempted are fenced. */
    private void began(String method) {
        if (!node.alive()) {
            return;
        }
        switch ((String) checked(method)) {
            case "fencing" -> {}
            case "empty" -> endStep(false);
            case "running" -> {
                drawLayers();
                scheduleLayers(0);
            }
            case String other -> throw new IllegalStateException(other);
        }
    }

    private void drawLayers() {
        boolean unhooked = random.nextDouble() < swarm.unhookedLayers();
        hookedLayers = unhooked ? random.nextInt(layerCount + 1) : layerCount;
        List<Integer> order =
                new ArrayList<>(IntStream.range(0, layerCount).boxed().toList());
        if (unhooked && random.nextInt(3) == 0) {
            Collections.shuffle(order, new Random(random.nextLong()));
        }
        layerOrder = order;
    }

    private void scheduleLayers(int from) {
        clock.after(
                10 * Scenario.MICRO + random.nextLong(150 * Scenario.MICRO),
                () -> node.whenRunning(() -> fireLayers(from)));
    }

    private void fireLayers(int from) {
        if (!node.alive()) {
            return;
        }
        int jump = random.nextDouble() < swarm.counterJump() ? 1 + random.nextInt(layerCount) : 1;
        int to = Math.min(layerCount, from + jump);
        for (int i = from; i < to; i++) {
            int layer = layerOrder.get(i);
            host.compute(layer);
            if (i < hookedLayers) {
                checked("layer", layers().get(layer).name());
            }
        }
        if (to < layerCount) {
            scheduleLayers(to);
        } else {
            boolean fails = !healed && random.nextDouble() < swarm.stepFails() * 0.1;
            clock.after(random.nextLong(200 * Scenario.MICRO), () -> node.whenRunning(() -> endStep(fails)));
        }
    }

    private void endStep(boolean failed) {
        if (!node.alive()) {
            return;
        }
        String outlook = (String) checked("end", failed);
        stepPlanned = false;
        if (failed && random.nextBoolean()) {
            die();
            return;
        }
        if (!outlook.equals("idle")) {
            wake();
        }
        quiet = outlook.equals("quiet");
    }

    /** vLLM's engine does not survive a forward pass that fails. */
    private void die() {
        world.kill(world.process(node.name()), false);
        clock.after(random.nextLong(60 * Scenario.MILLI), () -> world.restart(node.name()));
    }

    // ---- the messenger's side

    @Override
    public EngineEvents events() {
        return events;
    }

    @Override
    public EngineIntake intake() {
        return this;
    }

    @Override
    public LayerProgress progress() {
        return progress;
    }

    // ---- the end

    @Override
    public void heal() {
        healed = true;
    }

    @Override
    public int unendedCount() {
        return (int) (long) python.invoke("call", engine, "unended_count");
    }

    @Override
    public String describeUnended() {
        return (String) python.invoke("call", engine, "describe_unended");
    }

    @Override
    public void checkAtRest() {
        String found = (String) checked("describe_held");
        if (!found.isEmpty()) {
            throw new Violation("Python", node.process() + " is at rest and " + found);
        }
        if (!host.unheard().isEmpty()) {
            throw new Violation(
                    "Terminal", node.process() + " has neither fetched, declined nor rejected " + host.unheard());
        }
    }
}
