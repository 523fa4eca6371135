package io.kvmessenger.foreign;

import io.kvmessenger.bindings.C;
import io.kvmessenger.bindings.NativeLibrary;
import io.kvmessenger.bindings.Operation;
import java.lang.foreign.MemorySegment;

/**
 * The functions of libibverbs that this project calls, under their C names; see
 * <a href="https://man7.org/linux/man-pages/man7/rdma_cm.7.html">the manual</a>.
 *
 * <p>Functions of the data path are inline in C: they call through a device's table of operations, as is done here.
 *
 * <p>Objects of the library are identified by their address. A result below zero is {@code -errno}. Arguments that are
 * always null or zero in this project are omitted. Safe from any thread, but concurrent calls on one queue pair or
 * completion queue are executed in no particular order.
 */
@NativeLibrary(file = "libibverbs.so.1", failures = NativeLibrary.Failures.ERRNO_OR_NUMBER)
public interface LibVerbs {
    /** The address of an array of {@code count} device addresses; 0 with a count of 0 if the system has none. */
    long ibv_get_device_list(MemorySegment count);

    void ibv_free_device_list(long list);

    String ibv_get_device_name(long device);

    long ibv_open_device(long device);

    int ibv_close_device(long context);

    int ibv_query_device(long context, MemorySegment attributes);

    @C("ibv_query_port(context, (byte) port, attributes)")
    int ibv_query_port(long context, int port, MemorySegment attributes);

    /** {@code ibv_query_gid_ex}, by the exported function behind the inline one. */
    @C("_ibv_query_gid_ex(context, port, index, entry, 0, " + VerbsLayout.GID_ENTRY_SIZE_BYTES + "L)")
    int ibv_query_gid_ex(long context, int port, int index, MemorySegment entry);

    long ibv_alloc_pd(long context);

    int ibv_dealloc_pd(long domain);

    /** {@code ibv_reg_mr}, by the function that drops flags unknown to the kernel. */
    @C("ibv_reg_mr_iova2(domain, address, lengthBytes, address, access)")
    long ibv_reg_mr(long domain, long address, long lengthBytes, int access);

    /**
     * {@code -ENOSYS} if the library is older than rdma-core 34, {@code -EOPNOTSUPP} if the device's driver lacks
     * support.
     *
     * @param offsetBytes start of the memory within the dma-buf
     * @param address names the memory in requests; has the same offset within its page as {@code offsetBytes}
     * @param fd stays the caller's: the registration keeps the memory alive
     */
    @C(optional = true, otherwise = -Errno.ENOSYS)
    long ibv_reg_dmabuf_mr(long domain, long offsetBytes, long lengthBytes, long address, int fd, int access);

    int ibv_dereg_mr(long region);

    default int lkey(long region) {
        return ForeignMemory.intAt(region + VerbsLayout.MR_LKEY);
    }

    default int rkey(long region) {
        return ForeignMemory.intAt(region + VerbsLayout.MR_RKEY);
    }

    @C("ibv_create_cq(context, entries, 0L, 0L, 0)")
    long ibv_create_cq(long context, int entries);

    int ibv_destroy_cq(long queue);

    long ibv_create_qp(long domain, MemorySegment attributes);

    int ibv_modify_qp(long pair, MemorySegment attributes, int mask);

    int ibv_destroy_qp(long pair);

    default int qp_num(long pair) {
        return ForeignMemory.intAt(pair + VerbsLayout.QP_QP_NUM);
    }

    /** @param refused receives, on failure, the address of the first request that was not accepted */
    @Operation(
            table = VerbsLayout.QP_CONTEXT,
            offset = VerbsLayout.CONTEXT_OPS_POST_SEND,
            sized = false,
            negated = true)
    int ibv_post_send(long pair, long request, MemorySegment refused);

    @Operation(
            table = VerbsLayout.QP_CONTEXT,
            offset = VerbsLayout.CONTEXT_OPS_POST_RECV,
            sized = false,
            negated = true)
    int ibv_post_recv(long pair, long request, MemorySegment refused);

    @Operation(table = VerbsLayout.CQ_CONTEXT, offset = VerbsLayout.CONTEXT_OPS_POLL_CQ, sized = false)
    int ibv_poll_cq(long queue, int entries, MemorySegment completions);

    String ibv_wc_status_str(int status);
}
