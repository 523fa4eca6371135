package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The memory registered with one NIC, by region: as a source, and as a target that a peer can name. Subclasses
 * implement registration for their transport.
 *
 * <p>Changed by the messenger's thread and closed by the worker, under a lock; read by the worker without it.
 */
public abstract class NicRegions {
    /** The id of gathered memory, which belongs to no region and is not disclosed to peers. */
    private static final int GATHERED_ID = -1;

    private final Map<Integer, Registered> byId = new ConcurrentHashMap<>();
    private volatile int changes;
    /** Below that of gathered memory. */
    private int lastOwnId = GATHERED_ID;

    private boolean closed;

    /**
     * A registration. A value.
     *
     * @param remote how peers name the memory
     * @param address of its first byte, on this side
     * @param handle for deregistration
     * @param localKey by which the NIC reads it
     */
    public record Registered(RemoteMemory remote, long address, long handle, long localKey) {
        private boolean contains(long begin, long lengthBytes) {
            return begin >= address && begin + lengthBytes <= address + remote.lengthBytes();
        }
    }

    /**
     * Registers memory of this process; called under the lock.
     *
     * @param isTarget whether peers may write to it; if not, the NIC only reads it
     * @throws IllegalStateException when the NIC refuses the memory
     */
    protected abstract Registered register(int regionId, MemorySegment memory, boolean isTarget);

    /**
     * Registers device memory as a source and as a target; called under the lock.
     *
     * @param fd of a dma-buf; it stays the caller's
     * @param offsetBytes start of the memory within the dma-buf
     * @throws IllegalStateException when the NIC refuses the memory
     */
    protected Registered registerDmaBuf(int regionId, Memory.Device memory, int fd, long offsetBytes) {
        throw new IllegalStateException("it takes no dma-buf");
    }

    /** Deregisters it; called under the lock. */
    protected abstract void deregister(Registered registered);

    /** @throws IllegalStateException when the NIC refuses the memory */
    public final synchronized void add(int regionId, MemorySegment memory) {
        byId.put(regionId, register(regionId, memory, true));
    }

    /** The same for device memory that begins at an offset in a dma-buf. */
    public final synchronized void addDmaBuf(int regionId, Memory.Device memory, int fd, long offsetBytes) {
        byId.put(regionId, registerDmaBuf(regionId, memory, fd, offsetBytes));
    }

    /**
     * Worker: registers memory of the engine itself, which peers cannot name.
     *
     * @throws IllegalStateException when the NIC refuses the memory
     */
    public final synchronized Registered addGathered(MemorySegment memory) {
        Registered registered = register(GATHERED_ID, memory, false);
        byId.put(GATHERED_ID, registered);
        return registered;
    }

    /**
     * Worker: registers other memory of the engine itself under an id that no region has, so that only a peer that is
     * given its key can name it; {@link #remove} deregisters it.
     *
     * @param isTarget whether a peer may write to it
     * @throws IllegalStateException when the NIC refuses the memory
     */
    public final synchronized Registered addOwn(MemorySegment memory, boolean isTarget) {
        Registered registered = register(--lastOwnId, memory, isTarget);
        byId.put(lastOwnId, registered);
        return registered;
    }

    /** Nothing writes to the region any more. Has no effect if the domain has closed it already. */
    public final synchronized void remove(int regionId) {
        Registered registered = byId.remove(regionId);
        if (registered != null) {
            changes = changes + 1;
            deregister(registered);
        }
    }

    /** Worker: the region's registration, or null. */
    public final Registered of(int regionId) {
        return byId.get(regionId);
    }

    /** The record by which peers write to a region; {@link RemoteMemory#unknown} for an unregistered one. */
    public final RemoteMemory remoteOf(int regionId) {
        Registered registered = of(regionId);
        return registered == null ? RemoteMemory.unknown(regionId) : registered.remote();
    }

    /** Worker: a version number. While it stays the same, results of {@link #around} stay valid. */
    final int changes() {
        return changes;
    }

    /** Worker: the registration that contains this memory, or null. Searches linearly. */
    final Registered around(long address, long lengthBytes) {
        for (Registered registered : byId.values()) {
            if (registered.contains(address, lengthBytes)) {
                return registered;
            }
        }
        return null;
    }

    /** Worker: deregisters everything; all users are closed. Returns whether it was open. */
    public synchronized boolean close() {
        boolean wasOpen = !closed;
        closed = true;
        if (wasOpen) {
            byId.keySet().forEach(this::remove);
        }
        return wasOpen;
    }
}
