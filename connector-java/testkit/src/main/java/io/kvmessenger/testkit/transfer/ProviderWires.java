package io.kvmessenger.testkit.transfer;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.function.Consumer;

/**
 * The operations in flight of a {@link FaultyProvider}'s endpoints. A write is sent, then completed, and arrives at any
 * time after it is sent: progress happens only while a queue is read. For one thread at a time.
 */
final class ProviderWires {
    /** Faults, injected once per request; the last two last until they are ended. */
    enum Fault {
        /** A write fails, and its error identifies it. */
        FAILED_WRITE,
        /** An error without a context, as of a connection. */
        ERROR_OF_NOTHING,
        /** The target's queue has an error, as of a connection. */
        ERROR_AT_THE_TARGET,
        /** A completion without a context. */
        COMPLETION_OF_NOTHING,
        COMPLETED_TWICE,
        /** A read returns fewer completions than there are. */
        SHORT_READS,
        /** What is sent never arrives. */
        SWALLOWED
    }

    private static final Set<Fault> LASTING = EnumSet.of(Fault.SHORT_READS, Fault.SWALLOWED);
    private static final int ECANCELED = 125;
    private static final int EHOSTUNREACH = 113;

    private static final class Write {
        private final long context;
        private final long source;
        private final int imm;
        private final long to;
        private final long target;
        private final long key;
        private final byte[] payload;
        private boolean sent;

        private Write(long context, long source, long lengthBytes, int imm, long to, long target, long key) {
            this.context = context;
            this.source = source;
            this.imm = imm;
            this.to = to;
            this.target = target;
            this.key = key;
            payload = new byte[(int) lengthBytes];
        }
    }

    private static final class Endpoint {
        private long queue;
        private long vector;
        private final List<Write> underWay = new ArrayList<>();
        private final List<Write> arriving = new ArrayList<>();
    }

    private record Completion(long context, long flags, int imm) {}

    private record Failure(long context, int errno) {}

    private static final class Queue {
        private final long size;
        private final Deque<Completion> completions = new ArrayDeque<>();
        private final Deque<Failure> failures = new ArrayDeque<>();

        private Queue(long size) {
            this.size = size;
        }
    }

    private record Memory(long address, long lengthBytes, long key) {
        private boolean contains(long from, long bytes) {
            return from >= address && from + bytes <= address + lengthBytes;
        }
    }

    private final Random random;
    private final Consumer<String> violations;
    private final Map<Long, Endpoint> endpoints = new HashMap<>();
    private final Map<Long, Queue> queues = new HashMap<>();
    private final Map<Long, Memory> regions = new HashMap<>();
    private final Set<Fault> faults = EnumSet.noneOf(Fault.class);

    ProviderWires(Random random, Consumer<String> violations) {
        this.random = random;
        this.violations = violations;
    }

    void make(Fault fault) {
        faults.add(fault);
    }

    void stop(Fault fault) {
        faults.remove(fault);
    }

    boolean hasDone(Fault fault) {
        return !faults.contains(fault);
    }

    private boolean shall(Fault fault) {
        return LASTING.contains(fault) ? faults.contains(fault) : faults.remove(fault);
    }

    void addQueue(long queue, long size) {
        queues.put(queue, new Queue(size));
    }

    void addEndpoint(long endpoint) {
        endpoints.put(endpoint, new Endpoint());
    }

    /** Adds a region and returns its key. */
    long addRegion(long region, long address, long lengthBytes) {
        Memory memory = new Memory(address, lengthBytes, Integer.toUnsignedLong(random.nextInt()));
        regions.put(region, memory);
        return memory.key;
    }

    boolean hasRegion(long region, long address, long lengthBytes) {
        Memory memory = regions.get(region);
        return memory != null && memory.contains(address, lengthBytes);
    }

    void bind(long endpoint, long object, boolean isQueue) {
        Endpoint bound = endpoints.get(endpoint);
        if (isQueue) {
            bound.queue = object;
        } else {
            bound.vector = object;
        }
    }

    /** Whether an open endpoint depends on the object. */
    boolean isBound(long object) {
        return endpoints.values().stream().anyMatch(one -> one.queue == object || one.vector == object);
    }

    long vectorOf(long endpoint) {
        return endpoints.get(endpoint).vector;
    }

    /** Writes in flight from a closed endpoint may still arrive; those to a closed endpoint may not. */
    void remove(long object) {
        endpoints.remove(object);
        queues.remove(object);
        regions.remove(object);
    }

    boolean isFull(long endpoint, int depth) {
        return endpoints.get(endpoint).underWay.size() >= depth;
    }

    void begin(long endpoint, long source, long lengthBytes, int imm, long to, long target, long key, long context) {
        Endpoint from = endpoints.get(endpoint);
        if (context == 0 || from.underWay.stream().anyMatch(other -> other.context == context)) {
            violations.accept("the context of a write is another's");
        }
        from.underWay.add(new Write(context, source, lengthBytes, imm, to, target, key));
    }

    private void advance(Endpoint endpoint) {
        Queue queue = queues.get(endpoint.queue);
        Collections.shuffle(endpoint.underWay, random);
        for (Write write : List.copyOf(endpoint.underWay)) {
            if (random.nextInt(4) == 0) {
                continue;
            }
            if (write.sent) {
                endpoint.underWay.remove(write);
                complete(queue, write);
            } else {
                send(write);
            }
        }
        Collections.shuffle(endpoint.arriving, random);
        int count = random.nextInt(endpoint.arriving.size() + 1);
        for (int i = 0; i < Math.max(count, Math.min(1, endpoint.arriving.size())); i++) {
            arrive(queue, endpoint.arriving.removeLast());
        }
    }

    private void send(Write write) {
        write.sent = true;
        MemorySegment source =
                write.payload.length == 0 ? MemorySegment.NULL : ForeignMemory.at(write.source, write.payload.length);
        MemorySegment.copy(source, JAVA_BYTE, 0, write.payload, 0, write.payload.length);
        Endpoint to = endpoints.get(write.to);
        if (to != null && !shall(Fault.SWALLOWED)) {
            to.arriving.add(write);
        }
    }

    private void complete(Queue queue, Write write) {
        if (shall(Fault.FAILED_WRITE)) {
            queue.failures.add(new Failure(write.context, ECANCELED));
        } else if (shall(Fault.ERROR_OF_NOTHING)) {
            queue.failures.add(new Failure(0, ECANCELED));
        } else if (!endpoints.containsKey(write.to)) {
            queue.failures.add(new Failure(write.context, EHOSTUNREACH));
        } else {
            Completion completion = new Completion(write.context, FabricApi.FI_RMA | FabricApi.FI_WRITE, 0);
            queue.completions.add(
                    shall(Fault.COMPLETION_OF_NOTHING) ? new Completion(0, completion.flags, 0) : completion);
            if (shall(Fault.COMPLETED_TWICE)) {
                queue.completions.add(completion);
            }
        }
    }

    private void arrive(Queue queue, Write write) {
        if (shall(Fault.ERROR_AT_THE_TARGET)) {
            queue.failures.add(new Failure(0, ECANCELED));
            return;
        }
        Memory memory = regions.values().stream()
                .filter(one -> one.key == write.key)
                .findFirst()
                .orElse(null);
        if (memory == null) {
            return; // refused by its key, as a NIC does
        }
        if (!memory.contains(write.target, write.payload.length)) {
            violations.accept("a write leaves its region");
            return;
        }
        if (write.payload.length > 0) {
            MemorySegment.copy(
                    write.payload,
                    0,
                    ForeignMemory.at(write.target, write.payload.length),
                    JAVA_BYTE,
                    0,
                    write.payload.length);
        }
        queue.completions.add(new Completion(
                0, FabricApi.FI_RMA | FabricApi.FI_REMOTE_WRITE | FabricApi.FI_REMOTE_CQ_DATA, write.imm));
        if (queue.completions.size() > queue.size) {
            violations.accept("a queue of " + queue.size + " has overrun");
        }
    }

    /** Advances all operations that report to the queue; returns the completions written, or {@code -errno}. */
    long read(long queue, long entries, long count) {
        for (Endpoint endpoint : List.copyOf(endpoints.values())) {
            if (endpoint.queue == queue) {
                advance(endpoint);
            }
        }
        Queue read = queues.get(queue);
        if (read.failures.size() > 0) {
            return -FabricApi.FI_EAVAIL;
        }
        int take = (int) Math.min(count, read.completions.size());
        take = take > 1 && shall(Fault.SHORT_READS) ? 1 + random.nextInt(take) : take;
        for (int i = 0; i < take; i++) {
            Completion completion = read.completions.removeFirst();
            MemorySegment entry =
                    ForeignMemory.at(entries + i * FabricLayout.CQ_ENTRY_SIZE_BYTES, FabricLayout.CQ_ENTRY_SIZE_BYTES);
            entry.set(JAVA_LONG, FabricLayout.CQ_ENTRY_CONTEXT, completion.context);
            entry.set(JAVA_LONG, FabricLayout.CQ_ENTRY_FLAGS, completion.flags);
            // A provider may deliver more than the 4 bytes that were sent.
            long above = (long) random.nextInt() << Integer.SIZE;
            entry.set(JAVA_LONG, FabricLayout.CQ_ENTRY_DATA, above | Integer.toUnsignedLong(completion.imm));
        }
        return take == 0 ? -Errno.EAGAIN : take;
    }

    /** Returns 1 after writing an error, or {@code -errno}. */
    long readError(long queue, long entry) {
        Failure failure = queues.get(queue).failures.poll();
        if (failure == null) {
            return -Errno.EAGAIN;
        }
        MemorySegment error = ForeignMemory.at(entry, FabricLayout.CQ_ERROR_SIZE_BYTES);
        error.set(JAVA_LONG, FabricLayout.CQ_ENTRY_CONTEXT, failure.context);
        error.set(JAVA_INT, FabricLayout.CQ_ERROR_ERR, failure.errno);
        error.set(JAVA_INT, FabricLayout.CQ_ERROR_PROV_ERRNO, 0);
        error.set(JAVA_LONG, FabricLayout.CQ_ERROR_ERR_DATA, 0);
        return 1;
    }
}
