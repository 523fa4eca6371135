package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.transfer.spi.RemoteMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.security.SecureRandom;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Memory that is registered with one NIC, by region: as a source, and as a target that a peer can name.
 *
 * <p>Changed by the messenger's thread and closed by the worker, under a lock; looked at by the worker without.
 */
final class FabricRegions {
    /** No region has it: a few bytes for immediates without a page, which have to name memory all the same. */
    static final int LANDING_ID = 0;

    private static final long LANDING_BYTES = 64;

    /** No region has it: where the engine gathers what a NIC does not reach. Peers are told of neither. */
    private static final int GATHERED_ID = -1;

    /** One that is registered. */
    record Registered(RemoteMemory remote, long address, long handle, long descriptor) {
        private boolean contains(MemorySegment memory) {
            return memory.address() >= address
                    && memory.address() + memory.byteSize() <= address + remote.lengthBytes();
        }
    }

    private final OpenFabric fabric;
    private final SecureRandom random = new SecureRandom();
    private final Arena arena = Arena.ofShared();
    private final Map<Integer, Registered> byId = new ConcurrentHashMap<>();
    private volatile int changes;
    private boolean closed;

    /** @throws IllegalStateException when the provider refuses memory */
    FabricRegions(OpenFabric fabric) {
        this.fabric = fabric;
        try {
            add(LANDING_ID, arena.allocate(LANDING_BYTES, LANDING_BYTES));
        } catch (IllegalStateException e) {
            arena.close();
            throw e;
        }
    }

    /** @throws IllegalStateException when the provider refuses the memory */
    void add(int regionId, MemorySegment memory) {
        add(regionId, memory, FabricApi.FI_WRITE | FabricApi.FI_REMOTE_WRITE);
    }

    /**
     * Worker: the engine's own memory, which peers cannot name.
     *
     * @throws IllegalStateException when the provider refuses the memory
     */
    Registered addGathered(MemorySegment memory) {
        add(GATHERED_ID, memory, FabricApi.FI_WRITE);
        return of(GATHERED_ID);
    }

    private synchronized void add(int regionId, MemorySegment memory, long access) {
        try (Arena scratch = Arena.ofConfined()) {
            MemorySegment opened = scratch.allocate(JAVA_LONG);
            int result = fabric.library()
                    .fi_mr_reg(fabric.domain(), memory.address(), memory.byteSize(), access, wantedKey(), opened);
            fabric.require("fi_mr_reg", result);
            long handle = opened.get(JAVA_LONG, 0);
            long base = fabric.info().hasMrMode(FabricApi.FI_MR_VIRT_ADDR) ? memory.address() : 0;
            long key = fabric.library().fi_mr_key(handle);
            RemoteMemory remote = new RemoteMemory(regionId, memory.byteSize(), base, key);
            byId.put(
                    regionId,
                    new Registered(
                            remote, memory.address(), handle, fabric.library().fi_mr_desc(handle)));
        }
    }

    /** Not to be guessed, where the provider has no key of its own; never used again. */
    private long wantedKey() {
        if (fabric.info().hasMrMode(FabricApi.FI_MR_PROV_KEY)) {
            return 0;
        }
        int bits = Math.min(Long.SIZE - 1, Byte.SIZE * fabric.info().keyBytes());
        return random.nextLong() & ((1L << bits) - 1);
    }

    /** Nothing writes there any more; what has been closed with the domain is left alone. */
    synchronized void remove(int regionId) {
        Registered registered = byId.remove(regionId);
        if (registered != null) {
            changes = changes + 1;
            fabric.library().fi_close(registered.handle);
        }
    }

    /** Worker: the region, or null. */
    Registered of(int regionId) {
        return byId.get(regionId);
    }

    /** Worker: as long as it is the same, what was found {@link #around} memory is still so. */
    int changes() {
        return changes;
    }

    /** Worker: the one that has this memory, or null. Looks at all of them. */
    Registered around(MemorySegment memory) {
        for (Registered registered : byId.values()) {
            if (registered.contains(memory)) {
                return registered;
            }
        }
        return null;
    }

    /** Worker: all endpoints are closed. */
    synchronized void close() {
        if (!closed) {
            closed = true;
            byId.keySet().forEach(this::remove);
            arena.close();
        }
    }
}
