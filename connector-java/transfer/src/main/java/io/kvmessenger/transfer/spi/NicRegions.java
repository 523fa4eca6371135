package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Memory that is registered with one NIC, by region: as a source, and as a target that a peer can name. How a NIC registers is its
 * transport's.
 *
 * <p>Changed by the messenger's thread and closed by the worker, under a lock; looked at by the worker without.
 */
public abstract class NicRegions {
    /** No region has it: where the engine gathers what the NIC does not reach. Peers are not told of it. */
    private static final int GATHERED_ID = -1;

    private final Map<Integer, Registered> byId = new ConcurrentHashMap<>();
    private volatile int changes;
    private boolean closed;

    /**
     * One that is registered. A value.
     *
     * @param remote how peers name it
     * @param address of its first byte, on this side
     * @param handle what it is deregistered by
     * @param localKey what the NIC reads it by
     */
    public record Registered(RemoteMemory remote, long address, long handle, long localKey) {
        private boolean contains(long begin, long lengthBytes) {
            return begin >= address && begin + lengthBytes <= address + remote.lengthBytes();
        }
    }

    /**
     * Registers memory of this process; under the lock.
     *
     * @param isTarget whether peers may write there; else the NIC only reads it
     * @throws IllegalStateException when the NIC refuses the memory
     */
    protected abstract Registered register(int regionId, MemorySegment memory, boolean isTarget);

    /**
     * Registers memory of a device, as a source and as a target; under the lock.
     *
     * @param fd of a dma-buf, the caller's
     * @param offsetBytes where in it the memory begins
     * @throws IllegalStateException when the NIC refuses the memory
     */
    protected Registered registerDmaBuf(int regionId, Memory.Device memory, int fd, long offsetBytes) {
        throw new IllegalStateException("it takes no dma-buf");
    }

    /** Ends what the NIC keeps of it; under the lock. */
    protected abstract void deregister(Registered registered);

    /** @throws IllegalStateException when the NIC refuses the memory */
    public final synchronized void add(int regionId, MemorySegment memory) {
        byId.put(regionId, register(regionId, memory, true));
    }

    /** The same for a device's, of which the descriptor of a dma-buf has what begins at the offset. */
    public final synchronized void addDmaBuf(int regionId, Memory.Device memory, int fd, long offsetBytes) {
        byId.put(regionId, registerDmaBuf(regionId, memory, fd, offsetBytes));
    }

    /**
     * Worker: the engine's own memory, which peers cannot name.
     *
     * @throws IllegalStateException when the NIC refuses the memory
     */
    public final synchronized Registered addGathered(MemorySegment memory) {
        Registered registered = register(GATHERED_ID, memory, false);
        byId.put(GATHERED_ID, registered);
        return registered;
    }

    /** Nothing writes there any more; what has been closed with the domain is left alone. */
    public final synchronized void remove(int regionId) {
        Registered registered = byId.remove(regionId);
        if (registered != null) {
            changes = changes + 1;
            deregister(registered);
        }
    }

    /** Worker: the region, or null. */
    public final Registered of(int regionId) {
        return byId.get(regionId);
    }

    /** What peers need of a region; of none that is registered, that there is none. */
    public final RemoteMemory remoteOf(int regionId) {
        Registered registered = of(regionId);
        return registered == null ? RemoteMemory.unknown(regionId) : registered.remote();
    }

    /** Worker: as long as it is the same, what was found {@link #around} memory is still so. */
    final int changes() {
        return changes;
    }

    /** Worker: the one that has this memory, or null. Looks at all of them. */
    final Registered around(long address, long lengthBytes) {
        for (Registered registered : byId.values()) {
            if (registered.contains(address, lengthBytes)) {
                return registered;
            }
        }
        return null;
    }

    /** Worker: whatever uses it is closed. Returns whether it was open. */
    public synchronized boolean close() {
        boolean wasOpen = !closed;
        closed = true;
        if (wasOpen) {
            byId.keySet().forEach(this::remove);
        }
        return wasOpen;
    }
}
