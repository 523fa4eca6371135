package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.WorldListener;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Consumer;

/**
 * The device that computes a prefiller's forward passes: in the order in which they were queued, layer by layer,
 * incrementing the layer counter, which may become visible later. It continues while the process is suspended.
 *
 * <p>As a CPU it has one pass at a time, and increments are visible immediately. As a GPU it has a queue, and
 * increments once more at the end of each pass.
 */
final class SimulatedDevice {
    private static final int PASSES_QUEUED_MAX = 3;
    private static final long SHOWN_LATE_MAX_NS = 400 * Scenario.MICRO;

    private final SimulatedClock clock;
    private final SimulatedNode node;
    private final List<MemorySegment> memories;
    private final Swarm swarm;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Mutation mutation;
    private final Consumer<ForwardPass> onDone;

    private final ComputedLayers layers;
    private final SimulatedLayerCounter counter;
    /** Limit on queued passes; with more than one the engine runs ahead of the device. */
    private final int queueLength;

    private final long shownLateNs;
    private final Deque<ForwardPass> queue = new ArrayDeque<>();
    /** The counter's value when everything queued is over. */
    private long queuedPosition;
    /** The counter's value, and when it will last have become visible. */
    private long position;

    private long shownNs;

    SimulatedDevice(
            SimulatedClock clock,
            SimulatedNode node,
            PagePool pool,
            Swarm swarm,
            SplittableRandom random,
            WorldListener listener,
            Mutation mutation,
            Consumer<ForwardPass> onDone) {
        this.clock = clock;
        this.node = node;
        this.memories = pool.memories();
        this.swarm = swarm;
        this.random = random;
        this.listener = listener;
        this.mutation = mutation;
        this.onDone = onDone;
        this.layers = ComputedLayers.of(pool.geometry());
        this.queueLength = 1 + random.nextInt(PASSES_QUEUED_MAX);
        this.shownLateNs = runsBehind() ? random.nextLong(SHOWN_LATE_MAX_NS) : 0;
        this.queuedPosition = -random.nextInt(200); // so that its word wraps
        this.position = queuedPosition;
        this.counter = new SimulatedLayerCounter(position, layers);
    }

    ComputedLayers layers() {
        return layers;
    }

    SimulatedLayerCounter counter() {
        return counter;
    }

    /** Whether a pass is queued, and its end reported, before it is computed. */
    boolean runsBehind() {
        return queueLength > 1;
    }

    boolean full() {
        return queue.size() == queueLength;
    }

    /** Where the next pass begins. */
    long queuedPosition() {
        return queuedPosition;
    }

    Iterable<ForwardPass> queued() {
        return queue;
    }

    /** Queues a pass; it is computed after those before it. */
    void queue(ForwardPass pass) {
        boolean uncounted = mutation == Mutation.UNTOLD_PASS_NOT_COUNTED && !pass.reported();
        pass.counterStart = queuedPosition;
        pass.counterEnd = pass.fails
                ? queuedPosition + layers.count() + 1
                : queuedPosition + pass.hookedCount + (countsEnds() ? 1 : 0);
        queuedPosition = uncounted ? pass.counterStart : pass.counterEnd;
        queue.addLast(pass);
        if (queue.size() == 1) {
            scheduleLayers(pass, 0);
        }
    }

    private boolean countsEnds() {
        return runsBehind() && mutation != Mutation.PASS_END_NOT_COUNTED;
    }

    private void scheduleLayers(ForwardPass pass, int fromLayer) {
        clock.after(10 * Scenario.MICRO + random.nextLong(150 * Scenario.MICRO), () -> fireLayers(pass, fromLayer));
    }

    private void fireLayers(ForwardPass pass, int fromLayer) {
        if (!node.alive()) {
            return;
        }
        int jump = random.nextDouble() < swarm.counterJump() ? 1 + random.nextInt(layers.count()) : 1;
        int toLayer = Math.min(pass.computedCount, fromLayer + jump);
        for (int layer = fromLayer; layer < toLayer; layer++) {
            settleLayersBefore(pass, layer); // the first rank's next layer depends on them
            compute(pass, layers.firstAt(layer));
            if (layer < pass.hookedCount) {
                show(position + 1);
            }
        }
        if (random.nextBoolean()) {
            settleLayersBefore(pass, toLayer);
        }
        if (toLayer < pass.computedCount) {
            scheduleLayers(pass, toLayer);
        } else {
            clock.after(random.nextLong(200 * Scenario.MICRO), () -> finish(pass));
        }
    }

    private void finish(ForwardPass pass) {
        if (!node.alive()) {
            return;
        }
        if (!pass.fails) {
            settleLayersBefore(pass, layers.count());
        }
        long left = pass.counterEnd - pass.counterStart - Math.min(pass.hookedCount, pass.computedCount);
        if (left > 0) {
            show(position + left);
        }
        queue.removeFirst();
        if (!queue.isEmpty()) {
            scheduleLayers(queue.getFirst(), 0);
        }
        node.whenRunning(() -> onDone.accept(pass));
    }

    /** The other ranks complete these layers too. */
    private void settleLayersBefore(ForwardPass pass, int toLayer) {
        while (pass.settledCount < toLayer) {
            compute(pass, layers.laterAt(pass.settledCount++));
        }
    }

    private void compute(ForwardPass pass, List<ComputedLayers.RankLayer> at) {
        for (ForwardPass.Part part : pass.parts) {
            for (ComputedLayers.RankLayer layer : at) {
                part.share().compute(layer, memories.get(layer.rankIndex()));
                if (!part.share().givenUp()) {
                    listener.layerComputed(
                            node.process(), part.request(), layer.rankIndex(), layer.layerIndex(), part.endToken());
                }
            }
        }
    }

    /** The counter is incremented, which becomes visible some time later. */
    private void show(long count) {
        position = count;
        if (shownLateNs == 0) {
            counter.set(count);
            return;
        }
        shownNs = Math.max(shownNs, clock.nowNs() + random.nextLong(shownLateNs));
        clock.at(shownNs, () -> counter.set(count));
    }
}
