package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.spi.RemoteMemory;
import java.lang.foreign.MemorySegment;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Memory that is registered with one device, by region: as a source, and as a target that a peer can name.
 *
 * <p>Changed by the messenger's thread and closed by the worker, under a lock; looked at by the worker without.
 */
final class VerbsRegions {
    /** Relaxed order among the writes of one request: an immediate is told of after all that came before it, all the same. */
    private static final int ACCESS =
            VerbsApi.IBV_ACCESS_LOCAL_WRITE | VerbsApi.IBV_ACCESS_REMOTE_WRITE | VerbsApi.IBV_ACCESS_RELAXED_ORDERING;

    /** The device reads it for this engine; a peer that guessed its key would write nothing. */
    private static final int READ_BY_THIS_SIDE = VerbsApi.IBV_ACCESS_RELAXED_ORDERING;

    /** No region has it: where the engine gathers what the device does not reach. */
    private static final int GATHERED_ID = -1;

    /** One that is registered. */
    record Registered(RemoteMemory remote, long handle, int localKey) {
        private boolean contains(MemorySegment memory) {
            return memory.address() >= remote.base()
                    && memory.address() + memory.byteSize() <= remote.base() + remote.lengthBytes();
        }
    }

    private final OpenVerbs verbs;
    private final Map<Integer, Registered> byId = new ConcurrentHashMap<>();
    private volatile int changes;
    private boolean closed;

    VerbsRegions(OpenVerbs verbs) {
        this.verbs = verbs;
    }

    /** @throws IllegalStateException when the device refuses the memory */
    void add(int regionId, MemorySegment memory) {
        add(regionId, memory, ACCESS);
    }

    /**
     * Worker: the engine's own memory, which peers cannot name.
     *
     * @throws IllegalStateException when the device refuses the memory
     */
    Registered addGathered(MemorySegment memory) {
        add(GATHERED_ID, memory, READ_BY_THIS_SIDE);
        return of(GATHERED_ID);
    }

    private synchronized void add(int regionId, MemorySegment memory, int access) {
        long handle = verbs.library().ibv_reg_mr(verbs.domain(), memory.address(), memory.byteSize(), access);
        if (handle == -Errno.ENOMEM) {
            throw new IllegalStateException(verbs.port().device() + " cannot lock " + memory.byteSize()
                    + " bytes of memory: raise the limit that ulimit -l shows");
        }
        verbs.require("ibv_reg_mr", handle);
        long key = Integer.toUnsignedLong(verbs.library().rkey(handle));
        RemoteMemory remote = new RemoteMemory(regionId, memory.byteSize(), memory.address(), key);
        byId.put(regionId, new Registered(remote, handle, verbs.library().lkey(handle)));
    }

    /** Nothing writes there any more; what has been closed with the domain is left alone. */
    synchronized void remove(int regionId) {
        Registered registered = byId.remove(regionId);
        if (registered != null) {
            changes = changes + 1;
            verbs.library().ibv_dereg_mr(registered.handle);
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

    /** Worker: all queue pairs are closed. */
    synchronized void close() {
        if (!closed) {
            closed = true;
            byId.keySet().forEach(this::remove);
        }
    }
}
