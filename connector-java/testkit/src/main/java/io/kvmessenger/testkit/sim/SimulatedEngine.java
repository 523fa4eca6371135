package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.List;
import java.util.Objects;
import java.util.SplittableRandom;
import java.util.function.Function;

/** The Java model of an engine: a prefiller's and a decoder's half over the same pages. */
final class SimulatedEngine implements NodeEngine {
    private final Simulation world;
    private final SimulatedNode node;
    private final SimulatedPrefillEngine prefill;
    private final SimulatedDecodeEngine decode;
    private final SimulatedPulls pulls;
    private final Events events;

    SimulatedEngine(Simulation world, SimulatedNode node, PagePool pool, SplittableRandom random) {
        WorldListener listener = world.listener();
        this.world = world;
        this.node = node;
        prefill = new SimulatedPrefillEngine(
                world.clock(),
                node,
                pool,
                world.scenario(),
                random.split(),
                listener,
                world.mutation(),
                (transfer, tokenCount) -> world.enqueue(Scenario.engineOf(node.name()), transfer, tokenCount),
                () -> ofEngine(engine -> engine.prefill.source()),
                () -> decode().wake());
        decode = new SimulatedDecodeEngine(world.clock(), node, pool, random.split(), world.scenario(), listener);
        pulls = new SimulatedPulls(world, node, pool, () -> ofEngine(engine -> engine.pulls), decode::wake);
        events = new Events(world.trace(), listener);
    }

    /** A half of each live messenger of this engine, in their order. All engines of a run are of this model. */
    private <T> List<T> ofEngine(Function<SimulatedEngine, T> half) {
        return world.scenario().messengersOf(Scenario.engineOf(node.name())).stream()
                .map(world::process)
                .filter(Objects::nonNull)
                .map(process -> half.apply((SimulatedEngine) process.engine))
                .toList();
    }

    @Override
    public void pullFromAll() {
        pulls.askAll();
    }

    @Override
    public void prefill(TransferKey transfer, int promptTokens) {
        prefill.enqueue(transfer, promptTokens);
    }

    @Override
    public void decode(
            TransferKey transfer, List<PrefillerAddress> prefillers, int promptTokens, boolean decoderFirst) {
        decode.start(transfer, prefillers, promptTokens, decoderFirst);
    }

    @Override
    public void reject(String transferId, List<PrefillerAddress> prefillers) {
        decode.reject(transferId, prefillers);
    }

    private SimulatedDecodeEngine decode() {
        return decode;
    }

    @Override
    public EngineEvents events() {
        return events;
    }

    @Override
    public EngineIntake intake() {
        return prefill;
    }

    @Override
    public LayerProgress progress() {
        return prefill.progress();
    }

    @Override
    public void heal() {
        prefill.heal();
        decode.heal();
        pulls.heal();
    }

    @Override
    public int unendedCount() {
        return prefill.unendedCount() + decode.unendedCount() + pulls.unendedCount();
    }

    @Override
    public String describeUnended() {
        return prefill.describeUnended() + " " + decode.describeUnended() + " " + pulls.describeUnended();
    }

    /** Receives the messenger's events. */
    private final class Events implements EngineEvents {
        private final Trace trace;
        private final WorldListener listener;

        Events(Trace trace, WorldListener listener) {
            this.trace = trace;
            this.listener = listener;
        }

        @Override
        public void released(String request) {
            trace.add(node.process(), "released", request);
            prefill.released(request);
        }

        @Override
        public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {
            trace.add(node.process(), "granted", request);
            prefill.granted(request);
        }

        @Override
        public void stopped(String request, String reason) {
            trace.add(node.process(), "stopped", request + ": " + reason);
            prefill.stopped(request);
        }

        @Override
        public void offered(String request, int heldTokens, OfferOutcome outcome) {
            trace.add(node.process(), "offered", request + " " + heldTokens + " " + outcome);
            pulls.offered(request, heldTokens, outcome);
        }

        @Override
        public void arrived(String request, int pageCount) {
            if (pulls.has(request)) {
                trace.add(node.process(), "pulled", request);
                pulls.arrived(request, pageCount);
                return;
            }
            trace.add(node.process(), "arrived", request);
            decode.arrived(request, pageCount);
        }

        @Override
        public void failed(String request, String reason) {
            trace.add(node.process(), "failed", request + ": " + reason);
            if (pulls.has(request)) {
                pulls.failed(request, reason);
            } else {
                decode.failed(request, reason);
            }
        }

        @Override
        public void quarantined(String request, String reason) {
            trace.add(node.process(), "quarantined", request + ": " + reason);
            listener.fetchQuarantined(node.process(), request, reason);
        }

        @Override
        public void timeline(PrefillTimeline timeline) {
            trace.add(node.process(), "sent", timeline.request());
            listener.prefillSent(node.process(), timeline.request(), PrefillPrompt.nameOf(timeline.request()));
        }

        @Override
        public void timeline(FetchTimeline timeline) {}

        @Override
        public void log(Level level, String message) {
            trace.add(node.process(), "log" + level, message);
        }
    }
}
