package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.testkit.echo.EchoEvents;
import io.kvmessenger.testkit.echo.EchoSubject;
import io.kvmessenger.testkit.sim.check.EchoChecker;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/** One incarnation of a node that echoes: the production messenger with a subject without KV, on simulated ports. */
final class EchoProcess extends Incarnation {
    static final int HALF_LENGTH_BYTES = 128;

    /** Beyond every run: an ask that only its limit ends is a fault. */
    private static final long ASK_LIMIT_NS = Long.MAX_VALUE / 2;

    final EchoSubject subject;
    final Messenger messenger;
    private final EchoSimulation world;
    private final EchoChecker checker;
    private final MemorySegment bytes = Arena.ofAuto().allocate(2 * HALF_LENGTH_BYTES);
    private final Map<Long, Asked> open = new HashMap<>();
    private long lastId;

    private static final class Asked {
        final String from;
        final int lengthBytes;
        /** Whether no other ask has been open at any moment of this one: then the bytes can only be its own. */
        boolean alone;

        Asked(String from, int lengthBytes, boolean alone) {
            this.from = from;
            this.lengthBytes = lengthBytes;
            this.alone = alone;
        }
    }

    EchoProcess(EchoSimulation world, SimulatedNode node, SplittableRandom random) {
        super(world, node, random, world.scenario().engineLimits(), null);
        this.world = world;
        checker = world.checker();
        Region region = transfer.register(Memory.host(bytes));
        transport.use(List.of(region), List.of(bytes));
        EngineLog log = (level, message) -> {};
        PeerWarnings warnings = new PeerWarnings(log, node::nowNs);
        ReportingTally tally = new ReportingTally(node.process(), checker);
        Sessions sessions = new Sessions(
                new MessengerIdentity(
                        node.name(),
                        node.incarnation(),
                        world.scenario().secret().getBytes(StandardCharsets.UTF_8)),
                world.network().portOf(node, failing),
                world.limits(),
                tally,
                random.split(),
                warnings);
        subject = new EchoSubject("sim", ASK_LIMIT_NS, region, sessions, transfer, new Ends(), node::nowNs);
        messenger = new Messenger(sessions, subject, new Messenger.Ports(transfer, tally, warnings, node::nowNs));
        half(0).fill(content(node.name()));
        world.fabric().started(transport);
        world.network().started(node);
        node.start(messenger);
    }

    private MemorySegment half(int which) {
        return bytes.asSlice((long) which * HALF_LENGTH_BYTES, HALF_LENGTH_BYTES);
    }

    /** What every incarnation of a node lets others ask for. */
    private static byte content(String name) {
        return (byte) (1 + Math.floorMod(name.hashCode(), 250));
    }

    /** Asks another one for its bytes. */
    void ask(String from, int lengthBytes) {
        long id = ++lastId;
        boolean alone = open.isEmpty();
        if (alone) {
            half(1).fill((byte) 0);
        }
        open.values().forEach(other -> other.alone = false);
        open.put(id, new Asked(from, lengthBytes, alone));
        checker.asked(node.process(), id);
        world.trace().add(node.process(), "ask", id + " of " + from + " " + lengthBytes);
        node.input(m -> subject.ask(id, from, 1, lengthBytes, node.nowNs()));
    }

    int openCount() {
        return open.size();
    }

    String describe() {
        return node.process() + " has open asks " + open.keySet() + " and holds " + subject.held();
    }

    private final class Ends implements EchoEvents {
        @Override
        public void arrived(long id) {
            world.trace().add(node.process(), "arrived", String.valueOf(id));
            Asked asked = open.remove(id);
            checker.arrived(node.process(), id, asked == null || !asked.alone ? -1 : wrongAt(asked));
        }

        @Override
        public void failed(long id, String reason) {
            world.trace().add(node.process(), "failed", id + ": " + reason);
            open.remove(id);
            checker.failed(node.process(), id, reason);
        }

        /** The first byte that is not the listener's, or that nothing should have been written to; -1 if none. */
        private long wrongAt(Asked asked) {
            byte[] expected = new byte[HALF_LENGTH_BYTES];
            Arrays.fill(expected, 0, asked.lengthBytes, content(asked.from));
            return half(1).mismatch(MemorySegment.ofArray(expected));
        }
    }
}
