package io.kvmessenger.testkit.sim;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.engine.EnginePorts;
import io.kvmessenger.transfer.engine.InvokedEngine;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Function;
import java.util.stream.Stream;

/** One incarnation of one node: the production messenger on simulated ports, and the engine beside it. */
final class SimulatedProcess {
    /** The memory of a simulated engine is behind no descriptor, so that nothing of it is called. */
    private static final LibC LIB_C = new FfmLibC();

    final SimulatedNode node;
    final PagePool pool;
    final SimulatedTransport transport;
    final WatchedTransferEngine transfer;
    final NodeEngine engine;
    final Messenger messenger;

    SimulatedProcess(Simulation world, SimulatedNode node, KvGeometry geometry, SplittableRandom random) {
        Scenario scenario = world.scenario();
        WorldListener listener = world.listener();
        this.node = node;
        pool = new PagePool(geometry, scenario.traffic().contextKinds(), random.split());
        SimulatedWorker worker = new SimulatedWorker(world.clock(), random.split(), node, world.fabric());
        SimulatedTransport[] made = new SimulatedTransport[1];
        InvokedEngine invoked = new InvokedEngine(
                world.mutation().limits(scenario.engineLimits()),
                new EnginePorts(
                        LIB_C, node::nowNs, random.split(), worker, new SimulatedLinks(), List.of(simulated(port -> {
                            made[0] = new SimulatedTransport(node, world.fabric(), worker, port, random.split());
                            return made[0];
                        }))),
                node::wake);
        worker.start(invoked);
        transport = made[0];
        transfer = new WatchedTransferEngine(invoked.engine(), node.process(), listener);
        engine = world.engines().start(world, node, pool, random);
        List<MemorySegment> all = Stream.concat(pool.memories().stream(), pool.context().memories().stream())
                .toList();
        listener.processStarted(node.process(), geometry, all);
        List<Region> regions = all.stream()
                .map(memory -> transfer.register(memory, Region.NOT_SHAREABLE))
                .toList();
        transport.use(regions);
        int rankCount = pool.memories().size();
        List<RankMemory> memories = regions.stream()
                .limit(rankCount)
                .map(region -> new RankMemory(List.of(region)))
                .toList();
        List<Region> contextRegions = regions.subList(rankCount, regions.size());
        MutatedPorts mutated = new MutatedPorts(world.mutation(), engine.events(), transport, contextRegions);
        node.filterCommands(mutated::passes);
        Messenger.Ports ports = new Messenger.Ports(
                transfer,
                world.network().portOf(node),
                engine.events(),
                engine.intake(),
                engine.progress(),
                new SilentTally(),
                node::nowNs,
                random.split());
        String secret = world.mutation().changesFrames() ? "" : scenario.secret();
        messenger = new Messenger(
                new MessengerIdentity(node.name(), node.incarnation(), secret.getBytes(StandardCharsets.UTF_8)),
                geometry,
                memories,
                pool.context().describe(contextRegions),
                world.mutation().limits(scenario.limits()),
                scenario.checksumMode(),
                mutated.wrap(ports, ComputedLayers.of(geometry)));
        world.fabric().started(transport);
        world.network().started(node);
        node.start(messenger);
    }

    private static Transport simulated(Function<InboundPort, Domain> opened) {
        return new Transport() {
            @Override
            public String name() {
                return SimulatedTransport.NAME;
            }

            @Override
            public Domain open(InboundPort port, Figures figures) {
                return opened.apply(port);
            }
        };
    }
}
