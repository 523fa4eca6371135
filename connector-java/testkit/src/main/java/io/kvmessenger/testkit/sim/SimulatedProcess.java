package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.EngineEvents;
import io.kvmessenger.messenger.FetchTimeline;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.MessengerIdentity;
import io.kvmessenger.messenger.MessengerMetric;
import io.kvmessenger.messenger.PrefillTimeline;
import io.kvmessenger.messenger.RankMemory;
import io.kvmessenger.messenger.Tally;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Region;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.SplittableRandom;

/** One life of one node: the production messenger on simulated ports, and the engine beside it. */
final class SimulatedProcess {
    final SimulatedNode node;
    final PagePool pool;
    final SimulatedTransferEngine transfer;
    final SimulatedPrefillEngine prefill;
    final SimulatedDecodeEngine decode;
    final Messenger messenger;

    SimulatedProcess(Simulation world, SimulatedNode node, KvGeometry geometry, SplittableRandom random) {
        Scenario scenario = world.scenario();
        WorldListener listener = world.listener();
        this.node = node;
        pool = new PagePool(geometry, random.split());
        transfer = new SimulatedTransferEngine(
                node,
                world.fabric(),
                new SimulatedWindows(
                        scenario.slotCount(),
                        scenario.slotsReusedAtOnce(),
                        world.mutation() == Mutation.GENERATION_IGNORED));
        prefill = new SimulatedPrefillEngine(world.clock(), node, pool, scenario.swarm(), random.split(), listener);
        decode = new SimulatedDecodeEngine(world.clock(), node, pool, scenario.swarm(), random.split(), listener);
        listener.processStarted(node.process(), geometry, pool.memory());
        Region region = transfer.register(pool.memory(), Region.NOT_SHAREABLE);
        Events events = new Events(world.trace(), listener);
        MutatedPorts mutated = new MutatedPorts(world.mutation(), events);
        node.onCommand(mutated::onCommand);
        Messenger.Ports ports = new Messenger.Ports(
                transfer,
                world.network().portOf(node),
                events,
                prefill,
                prefill.progress(),
                new NoTally(),
                node::nowNs,
                random.split());
        messenger = new Messenger(
                new MessengerIdentity(
                        node.name(), node.incarnation(), scenario.secret().getBytes(StandardCharsets.UTF_8)),
                geometry,
                List.of(new RankMemory(List.of(region))),
                world.mutation().limits(scenario.limits()),
                mutated.wrap(ports, scenario.layerCount()));
        world.fabric().started(transfer);
        world.network().started(node);
        node.start(messenger);
    }

    int unendedCount() {
        return prefill.unendedCount() + decode.unendedCount();
    }

    /** What the messenger tells its engine. */
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
        public void arrived(String request, int pageCount) {
            trace.add(node.process(), "arrived", request);
            decode.arrived(request, pageCount);
        }

        @Override
        public void failed(String request, String reason) {
            trace.add(node.process(), "failed", request + ": " + reason);
            decode.failed(request, reason);
        }

        @Override
        public void timeline(PrefillTimeline timeline) {
            trace.add(node.process(), "sent", timeline.request());
            listener.prefillSent(node.process(), timeline.request(), timeline.transferId());
        }

        @Override
        public void timeline(FetchTimeline timeline) {}

        @Override
        public void log(Level level, String message) {
            trace.add(node.process(), "log" + level, message);
        }
    }

    private record NoTally() implements Tally {
        @Override
        public void add(MessengerMetric metric, long count) {}

        @Override
        public void set(MessengerMetric metric, long value) {}

        @Override
        public void observe(MessengerMetric metric, double value) {}
    }
}
