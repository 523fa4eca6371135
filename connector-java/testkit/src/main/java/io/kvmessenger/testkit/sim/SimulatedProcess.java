package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Region;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.SplittableRandom;

/** One incarnation of one node: the production messenger on simulated ports, and the engine beside it. */
final class SimulatedProcess {
    final SimulatedNode node;
    final PagePool pool;
    final SimulatedTransferEngine transfer;
    final NodeEngine engine;
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
                        scenario.slotCount(), scenario.slotsReusedAtOnce(), world.mutation(), scenario.fabric()));
        engine = world.engines().start(world, node, pool, random);
        listener.processStarted(node.process(), geometry, pool.memories());
        List<RankMemory> memories = pool.memories().stream()
                .map(memory -> new RankMemory(List.of(transfer.register(memory, Region.NOT_SHAREABLE))))
                .toList();
        MutatedPorts mutated = new MutatedPorts(world.mutation(), engine.events());
        node.onCommand(mutated::onCommand);
        Messenger.Ports ports = new Messenger.Ports(
                transfer,
                world.network().portOf(node),
                engine.events(),
                engine.intake(),
                engine.progress(),
                new SilentTally(),
                node::nowNs,
                random.split());
        messenger = new Messenger(
                new MessengerIdentity(
                        node.name(), node.incarnation(), scenario.secret().getBytes(StandardCharsets.UTF_8)),
                geometry,
                memories,
                List.of(),
                world.mutation().limits(scenario.limits()),
                scenario.checksumMode(),
                mutated.wrap(ports, ComputedLayers.of(geometry)));
        world.fabric().started(transfer);
        world.network().started(node);
        node.start(messenger);
    }
}
