package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/**
 * The copies from one process's device pages: below the production staging, with few slabs. Copies take their own time,
 * even while the process is suspended; they may be refused, and a stream may fail at any point. A sound device is fast
 * and has as many slabs as in production, though shorter ones.
 */
final class SimulatedCopies implements DeviceAccess {
    private static final int SLAB_BYTES_MIN = 64;
    private static final int SLABS_MIN = 4;
    private static final int SLABS_MAX = 8;
    /** At least the length of any joined pages. */
    private static final int LONG_BYTES = 1 << 14;
    /** Half a copy of a sound device: a real one copies some hundred KB in it. */
    static final long SOUND_COPY_NS_MAX = 10 * Scenario.MICRO;

    final SimulatedClock clock;
    final SimulatedNode node;
    final SimulatedFabric fabric;
    final SplittableRandom random;

    private final boolean sound;
    private final WorldListener listener;
    private final List<MemorySegment> pinned = new ArrayList<>();
    /** By rank, then by kind of context row. */
    private List<MemorySegment> memories = List.of();

    private SimulatedTransport transport;

    SimulatedCopies(
            SimulatedClock clock,
            SimulatedNode node,
            SimulatedFabric fabric,
            SplittableRandom random,
            boolean sound,
            WorldListener listener) {
        this.clock = clock;
        this.node = node;
        this.fabric = fabric;
        this.random = random;
        this.sound = sound;
        this.listener = listener;
    }

    /** With a faulty device so few slabs that writes of several pages, and peers among themselves, wait for room. */
    StagingLimits drawLimits() {
        int slabBytes = SLAB_BYTES_MIN << random.nextInt(4);
        int slabs = random.nextInt(SLABS_MIN, SLABS_MAX + 1);
        return new StagingLimits(slabBytes, sound ? StagingLimits.STANDARD.slabCount() : slabs, LONG_BYTES / slabBytes);
    }

    /** Duration of the next half of a copy. */
    long copyNs() {
        return sound && fabric.mutation() != Mutation.COPIES_AS_SLOW_AS_HOPS
                ? 1 + random.nextLong(SOUND_COPY_NS_MAX)
                : fabric.delayNs();
    }

    /** Called before anything is copied. */
    void serve(SimulatedTransport by, List<MemorySegment> all) {
        transport = by;
        memories = List.copyOf(all);
    }

    @Override
    public String refusal(int ordinal) {
        return null;
    }

    @Override
    public CopyStream openStream(int ordinal) {
        refuseSometimes("opening a stream");
        return new SimulatedCopyStream(this);
    }

    @Override
    public MemorySegment pin(long lengthBytes) {
        refuseSometimes("pinning host memory");
        pinned.add(Arena.ofAuto().allocate(lengthBytes));
        return pinned.getLast();
    }

    /** Pinned memory is freed with the process. */
    @Override
    public void close() {}

    void refuseSometimes(String call) {
        if (fabric.copyFails(node)) {
            throw new DeviceFault(call, "a fault of the seed");
        }
    }

    /** A stream has made progress. */
    void wakeWorkers() {
        if (fabric.mutation() == Mutation.COPIES_NOT_LOOKED_AT) {
            return;
        }
        transport.ofEngine().forEach(SimulatedTransport::wakeWorker);
    }

    /** Copies immediately; the bytes must lie in pages of one rank. */
    void copy(long hostAddress, long deviceAddress, long lengthBytes) {
        int rank = indexOf(memories, deviceAddress, lengthBytes);
        MemorySegment source = memories.get(rank);
        MemorySegment target = pinned.get(indexOf(pinned, hostAddress, lengthBytes));
        long offset = deviceAddress - source.address();
        listener.deviceRead(node.process(), rank, offset, Math.toIntExact(lengthBytes));
        MemorySegment.copy(source, offset, target, hostAddress - target.address(), lengthBytes);
    }

    private static int indexOf(List<MemorySegment> all, long address, long lengthBytes) {
        for (int i = 0; i < all.size(); i++) {
            long offset = address - all.get(i).address();
            if (offset >= 0 && offset + lengthBytes <= all.get(i).byteSize()) {
                return i;
            }
        }
        throw new AssertionError(lengthBytes + " bytes at " + address + " are in no memory that may be copied");
    }
}
