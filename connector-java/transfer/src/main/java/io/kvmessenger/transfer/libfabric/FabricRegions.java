package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.transfer.nic.NicRegions;
import io.kvmessenger.transfer.nic.RemoteMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.security.SecureRandom;

/** Memory registered with one NIC of libfabric. Threading as {@link NicRegions}. */
final class FabricRegions extends NicRegions {
    /** Id of a few bytes outside all regions, for immediates without a page, which have to name memory all the same. */
    static final int LANDING_ID = 0;

    private static final long LANDING_BYTES = 64;

    private final OpenFabric fabric;
    private final SecureRandom random = new SecureRandom();
    private final Arena arena = Arena.ofShared();

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

    @Override
    protected Registered register(int regionId, MemorySegment memory, boolean isTarget) {
        long access = isTarget ? FabricApi.FI_WRITE | FabricApi.FI_REMOTE_WRITE : FabricApi.FI_WRITE;
        try (Arena scratch = Arena.ofConfined()) {
            MemorySegment opened = scratch.allocate(JAVA_LONG);
            int result = fabric.library()
                    .fi_mr_reg(fabric.domain(), memory.address(), memory.byteSize(), access, wantedKey(), opened);
            fabric.require("fi_mr_reg", result);
            long handle = opened.get(JAVA_LONG, 0);
            long base = fabric.info().hasMrMode(FabricApi.FI_MR_VIRT_ADDR) ? memory.address() : 0;
            long key = fabric.library().fi_mr_key(handle);
            RemoteMemory remote = new RemoteMemory(regionId, memory.byteSize(), base, key);
            return new Registered(
                    remote, memory.address(), handle, fabric.library().fi_mr_desc(handle));
        }
    }

    /** An unpredictable key, for providers that do not choose keys; never reused. */
    private long wantedKey() {
        if (fabric.info().hasMrMode(FabricApi.FI_MR_PROV_KEY)) {
            return 0;
        }
        int bits = Math.min(Long.SIZE - 1, Byte.SIZE * fabric.info().keyBytes());
        return random.nextLong() & ((1L << bits) - 1);
    }

    @Override
    protected void deregister(Registered registered) {
        fabric.library().fi_close(registered.handle());
    }

    @Override
    public synchronized boolean close() {
        boolean wasOpen = super.close();
        if (wasOpen) {
            arena.close();
        }
        return wasOpen;
    }
}
