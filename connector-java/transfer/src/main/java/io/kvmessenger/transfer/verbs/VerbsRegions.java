package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.nic.NicRegions;
import io.kvmessenger.transfer.nic.RemoteMemory;
import java.lang.foreign.MemorySegment;

/** Memory registered with one RDMA device. Threading as {@link NicRegions}. */
final class VerbsRegions extends NicRegions {
    /** Relaxed ordering among the writes of one request; an immediate is still reported after all that preceded it. */
    private static final int ACCESS =
            VerbsApi.IBV_ACCESS_LOCAL_WRITE | VerbsApi.IBV_ACCESS_REMOTE_WRITE | VerbsApi.IBV_ACCESS_RELAXED_ORDERING;

    /** Strict ordering: for relaxed writes nothing guarantees that a completion follows the writes into a device. */
    private static final int OF_DEVICE = VerbsApi.IBV_ACCESS_LOCAL_WRITE | VerbsApi.IBV_ACCESS_REMOTE_WRITE;

    /** Read by the device for this engine; a peer that guessed its key could write nothing. */
    private static final int READ_BY_THIS_SIDE = VerbsApi.IBV_ACCESS_RELAXED_ORDERING;

    private final OpenVerbs verbs;

    VerbsRegions(OpenVerbs verbs) {
        this.verbs = verbs;
    }

    @Override
    protected Registered register(int regionId, MemorySegment memory, boolean isTarget) {
        int access = isTarget ? ACCESS : READ_BY_THIS_SIDE;
        long handle = verbs.library().ibv_reg_mr(verbs.domain(), memory.address(), memory.byteSize(), access);
        if (handle == -Errno.ENOMEM) {
            throw new IllegalStateException(verbs.port().device() + " cannot lock " + memory.byteSize()
                    + " bytes of memory: raise the limit that ulimit -l shows");
        }
        verbs.require("ibv_reg_mr", handle);
        return registered(regionId, memory.address(), memory.byteSize(), handle);
    }

    @Override
    protected Registered registerDmaBuf(int regionId, Memory.Device memory, int fd, long offsetBytes) {
        long handle = verbs.library()
                .ibv_reg_dmabuf_mr(verbs.domain(), offsetBytes, memory.lengthBytes(), memory.address(), fd, OF_DEVICE);
        verbs.require("ibv_reg_dmabuf_mr", handle);
        return registered(regionId, memory.address(), memory.lengthBytes(), handle);
    }

    private Registered registered(int regionId, long address, long lengthBytes, long handle) {
        long key = Integer.toUnsignedLong(verbs.library().rkey(handle));
        RemoteMemory remote = new RemoteMemory(regionId, lengthBytes, address, key);
        return new Registered(remote, address, handle, verbs.library().lkey(handle));
    }

    @Override
    protected void deregister(Registered registered) {
        verbs.library().ibv_dereg_mr(registered.handle());
    }
}
