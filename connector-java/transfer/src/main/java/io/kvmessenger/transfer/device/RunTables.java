package io.kvmessenger.transfer.device;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Tables of the runs that one stream's launches of the {@link CopyKernel} copy, in memory that the kernel reads.
 *
 * <p>One thread. A table is free again only when a mark behind its launch has been reached: the kernel reads it when
 * it runs. It launches nothing, and does not know marks by itself.
 */
final class RunTables {
    static final int NONE = -1;

    /** As many as {@link DeviceCopyStream} collects. */
    static final int RUNS_MAX = DeviceCopyStream.GATHERED_MAX;

    /**
     * Launches of a stream that are not known as done. More take the copy engine: the worker sees what is done once a
     * duty cycle, and a launch of 512 runs of 2 KiB takes about 20 µs of a bus of 55 GB/s.
     */
    static final int TABLES_MAX = 8;

    /** A run's target address, its source address, and its length. */
    static final long RUN_BYTES = 3L * Long.BYTES;

    static final long TABLE_BYTES = RUNS_MAX * RUN_BYTES;
    static final long ALL_BYTES = TABLES_MAX * TABLE_BYTES;

    private final PinnedMemory memory;
    private final MemorySegment runs;
    /** By table: the mark behind its last launch. */
    private final long[] marks = new long[TABLES_MAX];
    /** The kernel's parameters, which the driver copies at a launch, and their addresses. */
    private final MemorySegment parameters = Arena.ofAuto().allocate(ValueLayout.JAVA_LONG, 2);

    private final MemorySegment parameterAddresses = Arena.ofAuto().allocate(ValueLayout.JAVA_LONG, 2);

    /** @param memory of {@link #ALL_BYTES}, which no launch reads */
    RunTables(PinnedMemory memory) {
        this.memory = memory;
        runs = memory.memory();
        parameterAddresses.setAtIndex(ValueLayout.JAVA_LONG, 0, parameters.address());
        parameterAddresses.setAtIndex(ValueLayout.JAVA_LONG, 1, parameters.address() + Long.BYTES);
    }

    PinnedMemory memory() {
        return memory;
    }

    /**
     * A table that no launch reads; {@link #NONE} while each is read.
     *
     * @param reached the last mark that is known as reached
     */
    int free(long reached) {
        for (int table = 0; table < TABLES_MAX; table++) {
            if (marks[table] <= reached) {
                return table;
            }
        }
        return NONE;
    }

    void set(int table, int run, long target, long source, long lengthBytes) {
        long at = table * TABLE_BYTES + run * RUN_BYTES;
        runs.set(ValueLayout.JAVA_LONG, at, target);
        runs.set(ValueLayout.JAVA_LONG, at + Long.BYTES, source);
        runs.set(ValueLayout.JAVA_LONG, at + 2 * Long.BYTES, lengthBytes);
    }

    /** The table is read until this mark has been reached. */
    void use(int table, long mark) {
        marks[table] = mark;
    }

    /** What {@code cuLaunchKernel} takes for the first runs of a table; valid until the next call. */
    MemorySegment parameters(int table, int count) {
        parameters.setAtIndex(ValueLayout.JAVA_LONG, 0, runs.address() + table * TABLE_BYTES);
        parameters.setAtIndex(ValueLayout.JAVA_LONG, 1, count);
        return parameterAddresses;
    }
}
