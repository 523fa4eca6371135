package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.KvCache;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.ProtocolVersions;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.FrameVersions;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.Stream;

/** One incarnation of one node: the production messenger on simulated ports, and its engine. */
final class SimulatedProcess extends Incarnation {
    private static final ProtocolVersions OLDER_BUILDS =
            new ProtocolVersions(ProtocolLimits.PROTOCOL_VERSION_OLDEST, FrameVersions.OFFERS - 1);

    final PagePool pool;
    final NodeEngine engine;
    final KvCache cache;
    final Messenger messenger;

    SimulatedProcess(Simulation world, SimulatedNode node, KvGeometry geometry, SplittableRandom random) {
        this(
                world,
                node,
                random,
                new PagePool(geometry, contextOf(world.scenario().traffic()), random.split()),
                world.scenario().writesFromDevice(node.name()) ? copies(world, node) : null);
    }

    private SimulatedProcess(
            Simulation world, SimulatedNode node, SplittableRandom random, PagePool pool, SimulatedCopies copies) {
        super(world, node, random, world.mutation().limits(world.scenario().engineLimits()), copies);
        Scenario scenario = world.scenario();
        WorldListener listener = world.listener();
        this.pool = pool;
        KvGeometry geometry = pool.geometry();
        engine = world.engines().start(world, node, pool, random);
        List<MemorySegment> all = Stream.concat(pool.memories().stream(), pool.context().memories().stream())
                .toList();
        listener.processStarted(node.process(), geometry, all);
        List<Region> regions = register(all, copies, listener);
        int rankCount = pool.memories().size();
        List<RankMemory> memories = regions.stream()
                .limit(rankCount)
                .map(region -> new RankMemory(List.of(region)))
                .toList();
        List<Region> contextRegions = regions.subList(rankCount, regions.size());
        MutatedOffers mutatedOffers = new MutatedOffers(
                world.mutation(),
                engine.events(),
                node::nowNs,
                action -> world.clock().after(scenario.limits().offerLimitNs(), () -> {
                    if (node.alive()) {
                        action.run();
                    }
                }));
        world.network().frames().offersAt(node.process(), mutatedOffers);
        MutatedPorts mutated = new MutatedPorts(
                world.mutation(),
                engine.events(),
                mutatedOffers,
                transport,
                contextRegions,
                pool.context().kinds());
        node.hearCommandsAs(mutated::heard);
        KvPorts ports = new KvPorts(
                transfer,
                engine.events(),
                engine.intake(),
                engine.progress(),
                new ReportingTally(node.process(), listener),
                new History(),
                node::nowNs,
                random.split());
        KvPorts faulty = mutated.wrap(ports, ComputedLayers.of(geometry));
        PeerWarnings warnings = new PeerWarnings(faulty.engine(), faulty.clock());
        Sessions sessions = sessions(world, node, failing, faulty, warnings);
        cache = new KvCache(
                new Decoder.Cache(geometry, memories, pool.context().describe(contextRegions), scenario.checksumMode()),
                sessions,
                world.mutation().limits(scenario.limits()),
                faulty);
        messenger = new Messenger(
                sessions, cache, new Messenger.Ports(faulty.transfer(), faulty.tally(), warnings, faulty.clock()));
        world.fabric().started(transport);
        world.network().started(node);
        node.start(messenger, cache);
    }

    private static Sessions sessions(
            Simulation world, SimulatedNode node, FailingPorts failing, KvPorts ports, PeerWarnings warnings) {
        Scenario scenario = world.scenario();
        String secret = world.mutation().changesFrames() ? "" : scenario.secret();
        return new Sessions(
                new MessengerIdentity(
                        world.mutation() == Mutation.OFFERED_TO_ONE_MESSENGER
                                ? node.name()
                                : Scenario.engineOf(node.name()),
                        node.incarnation(),
                        secret.getBytes(StandardCharsets.UTF_8),
                        scenario.isOlderBuild(node.name()) ? OLDER_BUILDS : ProtocolVersions.OURS),
                world.network().portOf(node, failing),
                world.mutation().limits(scenario.limits()),
                ports.tally(),
                ports.random(),
                warnings);
    }

    private List<Region> register(List<MemorySegment> all, SimulatedCopies copies, WorldListener listener) {
        List<Region> regions = all.stream()
                .map(memory -> transfer.register(copies == null ? Memory.host(memory) : ofDevice(memory)))
                .toList();
        transport.use(regions, all);
        listener.regionsRegistered(
                node.process(),
                regions.stream().map(region -> region.descriptor().regionId()).toList());
        if (copies != null) {
            copies.serve(transport, all);
        }
        return regions;
    }

    private static ContextPool contextOf(Traffic traffic) {
        return new ContextPool(traffic.contextKinds(), traffic.contextOnRequest());
    }

    @Override
    void heal() {
        super.heal();
        engine.heal();
    }

    /** With random draws of their own, so that runs without devices stay as they were. */
    private static SimulatedCopies copies(Simulation world, SimulatedNode node) {
        SplittableRandom own =
                new SplittableRandom(world.scenario().seed() ^ node.process().hashCode());
        boolean sound = world.scenario().weather() == Scenario.Weather.SOUND;
        return new SimulatedCopies(world.clock(), node, world.fabric(), own, sound, world.listener());
    }

    private static Memory ofDevice(MemorySegment memory) {
        return new Memory.Device(0, memory.address(), memory.byteSize(), Memory.HandleKind.NONE);
    }
}
