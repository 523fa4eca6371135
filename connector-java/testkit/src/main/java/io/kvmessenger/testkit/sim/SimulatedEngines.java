package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.EngineLimits;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;

/**
 * Production transfer engines over a simulated fabric without faults, and nothing else. Time passes while one of them
 * waits. One thread.
 */
public final class SimulatedEngines {
    /** Name of the transport in addresses. */
    public static final String TRANSPORT = SimulatedTransport.NAME;

    private static final long SEED = 1;
    /** Longest single wait, after which conditions are checked. */
    private static final long WAIT_MAX_NS = 50 * Scenario.MICRO;

    private static final int COMPLETIONS = 1 << 16;
    private static final int PEERS = 1 << 10;

    private final SplittableRandom random = new SplittableRandom(SEED);
    private final SimulatedClock clock = new SimulatedClock();
    private final SimulatedFabric fabric;
    private int processCount;

    /**
     * @param kind the name of a {@link FabricKind}
     * @param laneCount of each path
     */
    public SimulatedEngines(String kind, int laneCount) {
        Swarm none = Swarm.quiet(new ZeroRandom());
        fabric = new SimulatedFabric(
                clock,
                new Trace(clock),
                new FabricShape(FabricKind.valueOf(kind), new Lanes(laneCount, 0), Fall.NONE, none, true),
                random.split(),
                new WorldListener() {},
                new Partitions(),
                Mutation.NONE);
    }

    /** An engine in a process of its own. */
    public TransferEngine open(TransferOptions options) {
        String name = "E" + processCount++;
        SimulatedNode node = new SimulatedNode(clock, random.split(), name, 1, 0, 0);
        InvokedProcess process = InvokedProcess.start(
                clock,
                random,
                node,
                fabric,
                new EngineLimits(
                        options.get(TransferOptions.REQUESTS_PER_PEER_MAX),
                        Imm.SLOT_COUNT_MAX,
                        Imm.GENERATION_COUNT,
                        COMPLETIONS,
                        PEERS),
                options.workerCount(),
                null,
                () -> {});
        fabric.started(process.transport());
        return new Waiting(process);
    }

    /** Lets the world's time pass where a thread would wait. */
    private final class Waiting extends PassingTransferEngine {
        private final SimulatedTransport transport;
        private final List<Region> regions = new ArrayList<>();

        Waiting(InvokedProcess process) {
            super(process.engine());
            transport = process.transport();
        }

        @Override
        public Region register(Memory memory) {
            Region region = super.register(memory);
            regions.add(region);
            transport.use(regions, regions.stream().map(Region::hostBytes).toList());
            return region;
        }

        @Override
        public void await(long limitNs) {
            long untilNs = clock.nowNs() + Math.min(limitNs, WAIT_MAX_NS);
            while (clock.step(untilNs)) {}
        }
    }

    /** Draws no faults. */
    private static final class ZeroRandom implements RandomGenerator {
        @Override
        public long nextLong() {
            return 0;
        }
    }
}
