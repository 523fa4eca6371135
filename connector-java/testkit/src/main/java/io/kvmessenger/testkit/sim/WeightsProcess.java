package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.testkit.sim.check.WeightsChecker;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/** One incarnation of a trainer or a server: the production messenger of weights on simulated ports. */
abstract class WeightsProcess extends Incarnation {
    final WeightsSimulation world;
    final WeightsShape shape;
    final WeightsChecker checker;
    final SplittableRandom random;
    /** The model of a trainer, or the landing of a server. */
    final MemorySegment bytes;

    final Region region;
    /** Whether it is about to end in good order. */
    private boolean leaving;

    WeightsProcess(WeightsSimulation world, SimulatedNode node, SplittableRandom random) {
        super(world, node, random, world.scenario().engineLimits(), null);
        this.world = world;
        this.random = random;
        shape = world.shape();
        checker = world.checker();
        bytes = Arena.ofAuto().allocate(shape.lengthBytes());
        region = transfer.register(Memory.host(bytes));
        transport.use(List.of(region), List.of(bytes));
    }

    /** What is held for updates, by name. */
    abstract Map<String, Integer> held();

    /** What its update is at, for faults that depend on it; "" while nothing is under way. */
    abstract String busyWith();

    /** What has not ended; "" if all has. */
    abstract String unended();

    /** The ports of its subject; {@link #open} follows. */
    final SubjectPorts ports() {
        EngineLog log = (level, message) -> {};
        WeightsTally tally = new WeightsTally(node.process(), checker);
        MessengerIdentity identity = new MessengerIdentity(
                node.name(), node.incarnation(), world.scenario().secret().getBytes(StandardCharsets.UTF_8));
        Sessions sessions = new Sessions(
                identity,
                world.network().portOf(node, failing),
                world.limits(),
                tally,
                random.split(),
                new PeerWarnings(log, node::nowNs));
        return new SubjectPorts(
                sessions, transfer, null, world.limits(), tally, node::nowNs, random.split(), Runnable::run);
    }

    final void open(ServedSubject subject, SubjectPorts ports) {
        PeerWarnings warnings = new PeerWarnings((level, message) -> {}, node::nowNs);
        Messenger messenger = new Messenger(
                ports.sessions(), subject, new Messenger.Ports(transfer, ports.tally(), warnings, node::nowNs));
        world.fabric().started(transport);
        world.network().started(node);
        node.start(messenger);
    }

    /** Runs after a time, or when the process resumes; not after its death. */
    final void later(long delayNs, Runnable action) {
        world.clock()
                .after(
                        delayNs,
                        () -> node.whenRunning(() -> {
                            if (node.alive()) {
                                action.run();
                            }
                        }));
    }

    final boolean happens(double rate) {
        return random.nextDouble() < rate && !world.isHealed();
    }

    final void trace(String kind, String detail) {
        world.trace().add(node.process(), kind, detail);
    }

    final boolean isLeaving() {
        return leaving;
    }

    final void onLeaving() {
        leaving = true;
    }
}
