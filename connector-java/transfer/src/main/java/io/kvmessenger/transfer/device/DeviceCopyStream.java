package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.foreign.LibCuda;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/**
 * A stream of one device. Copies are collected and queued together, by one call if the driver has it (CUDA 13), so that
 * many scattered pages cost little each.
 *
 * <p>One thread. Copies and marks allocate nothing once there are as many events as outstanding marks. The stream does
 * not synchronise with the default stream.
 */
public final class DeviceCopyStream implements CopyStream {
    /** Copies collected before they are queued without a mark. */
    static final int GATHERED_MAX = 512;

    /**
     * Fewer runs take the copy engine: on an H100 it takes 0.45 µs for each run of 2 KiB to host memory and 3.6 µs for
     * one within the device (docs/results/2026-11-26-h100.md), so 16 of them take longer than a launch, whose cost of
     * some µs was not measured.
     */
    static final int KERNEL_RUNS_MIN = 16;

    /**
     * With a longer run among them all take the copy engine: there it moves runs of 64 KiB to and from host memory at
     * 40 GB/s, near what the bus carries, and those of 16 KiB at 23 and 6.
     */
    static final long KERNEL_RUN_BYTES_MAX = 32 << 10;

    private static final int EVENTS_MIN = 16;

    private final DeviceDriver driver;
    private final LibCuda cuda;
    private final long context;
    private final long stream;

    private final MemorySegment targets;
    private final MemorySegment sources;
    private final MemorySegment lengths;
    private final MemorySegment attributes;
    private final MemorySegment firstOfAttributes;
    private final boolean[] ontoHost = new boolean[GATHERED_MAX];
    private final boolean[] outOfHost = new boolean[GATHERED_MAX];
    private int gathered;
    private boolean batches = true;

    private final CopyKernel kernel;
    private final RunTables tables;
    private long longestBytes;
    /** The range of host memory that the collected runs lie in; empty while none does. */
    private long hostBegin = Long.MAX_VALUE;

    private long hostEnd = Long.MIN_VALUE;

    /** A ring: the event of the mark with serial number {@code s} is at {@code s - 1}, modulo its length. 0 = none. */
    private long[] events = new long[EVENTS_MIN];

    private final MemorySegment created;
    private long marked;
    private long done;
    private DeviceFault fault;
    private boolean closed;

    private DeviceCopyStream(DeviceDriver driver, int ordinal, long context, Arena arena) {
        this.driver = driver;
        this.context = context;
        cuda = driver.cuda();
        targets = arena.allocate(ValueLayout.JAVA_LONG, GATHERED_MAX);
        sources = arena.allocate(ValueLayout.JAVA_LONG, GATHERED_MAX);
        lengths = arena.allocate(ValueLayout.JAVA_LONG, GATHERED_MAX);
        attributes = arena.allocate(CudaLayout.COPY_ATTRIBUTES_SIZE_BYTES, Long.BYTES);
        attributes.set(
                ValueLayout.JAVA_INT,
                CudaLayout.COPY_ATTRIBUTES_SRCACCESSORDER,
                CudaApi.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        firstOfAttributes = arena.allocate(ValueLayout.JAVA_LONG);
        created = arena.allocate(ValueLayout.JAVA_LONG);
        kernel = driver.kernels().of(ordinal);
        driver.require("cuStreamCreate", cuda.cuStreamCreate(created, CudaApi.CU_STREAM_NON_BLOCKING));
        stream = created.get(ValueLayout.JAVA_LONG, 0);
        tables = kernel == null ? null : takeTables(ordinal);
    }

    private RunTables takeTables(int ordinal) {
        try {
            return driver.kernels().takeTables(ordinal);
        } catch (DeviceFault e) {
            cuda.cuStreamDestroy_v2(stream);
            throw e;
        }
    }

    /**
     * Creates a stream of the device with this ordinal, whose context becomes the calling thread's.
     *
     * @throws DeviceFault when the driver refuses
     */
    public static DeviceCopyStream open(DeviceDriver driver, int ordinal) {
        long context = driver.contexts().of(ordinal);
        driver.contexts().makeCurrent(context);
        return new DeviceCopyStream(driver, ordinal, context, Arena.ofAuto());
    }

    @Override
    public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {
        reachHost(hostAddress, lengthBytes);
        gather(hostAddress, deviceAddress, lengthBytes, true, false);
    }

    @Override
    public void fromHost(long deviceAddress, long hostAddress, long lengthBytes) {
        reachHost(hostAddress, lengthBytes);
        gather(deviceAddress, hostAddress, lengthBytes, false, true);
    }

    @Override
    public void onDevice(long targetAddress, long sourceAddress, long lengthBytes) {
        gather(targetAddress, sourceAddress, lengthBytes, false, false);
    }

    private void gather(long target, long source, long lengthBytes, boolean toHost, boolean fromHost) {
        if (gathered == GATHERED_MAX) {
            queue();
        }
        targets.setAtIndex(ValueLayout.JAVA_LONG, gathered, target);
        sources.setAtIndex(ValueLayout.JAVA_LONG, gathered, source);
        lengths.setAtIndex(ValueLayout.JAVA_LONG, gathered, lengthBytes);
        longestBytes = Math.max(longestBytes, lengthBytes);
        ontoHost[gathered] = toHost;
        outOfHost[gathered++] = fromHost;
    }

    private void reachHost(long address, long lengthBytes) {
        hostBegin = Math.min(hostBegin, address);
        hostEnd = Math.max(hostEnd, address + lengthBytes);
    }

    private void queue() {
        begin();
        int count = gathered;
        int table = suitsKernel(count) ? freeTable() : RunTables.NONE;
        gathered = 0;
        longestBytes = 0;
        hostBegin = Long.MAX_VALUE;
        hostEnd = Long.MIN_VALUE;
        if (table == RunTables.NONE) {
            queueForCopyEngine(count);
        } else {
            launch(table, count);
        }
    }

    /** Host memory that the kernel does not reach would end the context: the copy engine copies it all the same. */
    private boolean suitsKernel(int count) {
        return kernel != null
                && count >= KERNEL_RUNS_MIN
                && longestBytes <= KERNEL_RUN_BYTES_MAX
                && (hostBegin >= hostEnd || driver.kernels().mapped().contains(hostBegin, hostEnd));
    }

    private int freeTable() {
        int table = tables.free(done);
        if (table == RunTables.NONE) {
            seeDone();
            table = tables.free(done);
        }
        return table;
    }

    private void launch(int table, int count) {
        for (int run = 0; run < count; run++) {
            tables.set(
                    table,
                    run,
                    targets.getAtIndex(ValueLayout.JAVA_LONG, run),
                    sources.getAtIndex(ValueLayout.JAVA_LONG, run),
                    lengths.getAtIndex(ValueLayout.JAVA_LONG, run));
        }
        tables.use(table, marked + 1);
        check("cuLaunchKernel", kernel.launch(tables, table, count, stream));
        driver.kernels().onRunsCopied(count);
    }

    private void queueForCopyEngine(int count) {
        if (count > 1 && batches) {
            int result = cuda.cuMemcpyBatchAsync_v2(
                    targets, sources, lengths, count, attributes, firstOfAttributes, 1, stream);
            batches = result != CudaApi.CUDA_ERROR_NOT_FOUND && result != CudaApi.CUDA_ERROR_NOT_SUPPORTED;
            if (batches) {
                check("cuMemcpyBatchAsync", result);
                return;
            }
        }
        for (int i = 0; i < count; i++) {
            queueOne(i);
        }
    }

    private void queueOne(int i) {
        long target = targets.getAtIndex(ValueLayout.JAVA_LONG, i);
        long source = sources.getAtIndex(ValueLayout.JAVA_LONG, i);
        long lengthBytes = lengths.getAtIndex(ValueLayout.JAVA_LONG, i);
        if (ontoHost[i]) {
            check("cuMemcpyDtoHAsync", cuda.cuMemcpyDtoHAsync_v2(target, source, lengthBytes, stream));
        } else if (outOfHost[i]) {
            check("cuMemcpyHtoDAsync", cuda.cuMemcpyHtoDAsync_v2(target, source, lengthBytes, stream));
        } else {
            check("cuMemcpyDtoDAsync", cuda.cuMemcpyDtoDAsync_v2(target, source, lengthBytes, stream));
        }
    }

    @Override
    public long mark() {
        queue();
        if (marked - done == events.length) {
            growEvents();
        }
        int at = slot(marked + 1);
        if (events[at] == 0) {
            check("cuEventCreate", cuda.cuEventCreate(created, CudaApi.CU_EVENT_DISABLE_TIMING));
            events[at] = created.get(ValueLayout.JAVA_LONG, 0);
        }
        check("cuEventRecord", cuda.cuEventRecord(events[at], stream));
        return ++marked;
    }

    private int slot(long serial) {
        return (int) ((serial - 1) & (events.length - 1));
    }

    /** Enlarges the ring when all events are in use; each keeps its mark. */
    private void growEvents() {
        long[] old = events;
        events = new long[old.length * 2];
        for (long serial = done + 1; serial <= marked; serial++) {
            events[slot(serial)] = old[(int) ((serial - 1) & (old.length - 1))];
        }
    }

    @Override
    public boolean isDone(long serial) {
        if (serial > marked) {
            throw new IllegalArgumentException("mark " + serial + " of a stream that has " + marked);
        }
        if (serial <= done) {
            return true;
        }
        begin();
        seeDone();
        return serial <= done;
    }

    private void seeDone() {
        while (done < marked) {
            int result = cuda.cuEventQuery(events[slot(done + 1)]);
            if (result == CudaApi.CUDA_ERROR_NOT_READY) {
                break;
            }
            check("copies of a device", result);
            done++;
        }
    }

    private void begin() {
        if (fault != null) {
            throw fault;
        }
        driver.contexts().makeCurrent(context);
    }

    private void check(String call, int result) {
        if (result != CudaApi.CUDA_SUCCESS) {
            fault = new DeviceFault(call, cuda.cuGetErrorName(result));
            throw fault;
        }
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        fault = new DeviceFault("a copy", "its stream's end");
        // Results are ignored: a context that has failed runs nothing any more, and its resources are gone.
        driver.contexts().tryMakeCurrent(context);
        boolean idle = cuda.cuStreamSynchronize(stream) == CudaApi.CUDA_SUCCESS;
        if (tables != null && idle) {
            driver.kernels().giveBack(tables);
        }
        Arrays.stream(events).filter(event -> event != 0).forEach(cuda::cuEventDestroy_v2);
        cuda.cuStreamDestroy_v2(stream);
    }
}
