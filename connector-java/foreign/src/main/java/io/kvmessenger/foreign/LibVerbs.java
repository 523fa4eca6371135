package io.kvmessenger.foreign;

import java.lang.foreign.MemorySegment;

/**
 * The functions of libibverbs that this project calls, under their C names;
 * <a href="https://man7.org/linux/man-pages/man7/rdma_cm.7.html">the manual</a> says what they do.
 *
 * <p>Objects of the library are named by their address. A result below zero is {@code -errno}. Arguments that are always null or zero
 * in this project are left out. Safe from any thread, but two calls on one queue pair or one queue of completions may not overlap
 * where the caller wants to know which came first.
 */
public interface LibVerbs {
    /** The devices, an array of addresses of {@code count} of them; 0 and a count of 0 where the system has none. */
    long ibv_get_device_list(MemorySegment count);

    void ibv_free_device_list(long list);

    String ibv_get_device_name(long device);

    long ibv_open_device(long device);

    int ibv_close_device(long context);

    int ibv_query_device(long context, MemorySegment attributes);

    int ibv_query_port(long context, int port, MemorySegment attributes);

    /** {@code ibv_query_gid_ex}, by the function behind it. */
    int ibv_query_gid_ex(long context, int port, int index, MemorySegment entry);

    long ibv_alloc_pd(long context);

    int ibv_dealloc_pd(long domain);

    /** {@code ibv_reg_mr}, by the function that leaves out flags which the kernel may not know. */
    long ibv_reg_mr(long domain, long address, long lengthBytes, int access);

    /**
     * {@code -ENOSYS} where the library is older than rdma-core 34, {@code -EOPNOTSUPP} where the device's driver cannot.
     *
     * @param offsetBytes where in the dma-buf the memory begins
     * @param address what the memory is named by in requests; as far into a page as the offset
     * @param fd stays the caller's: the region holds what it names
     */
    long ibv_reg_dmabuf_mr(long domain, long offsetBytes, long lengthBytes, long address, int fd, int access);

    int ibv_dereg_mr(long region);

    int lkey(long region);

    int rkey(long region);

    long ibv_create_cq(long context, int entries);

    int ibv_destroy_cq(long queue);

    long ibv_create_qp(long domain, MemorySegment attributes);

    int ibv_modify_qp(long pair, MemorySegment attributes, int mask);

    int ibv_destroy_qp(long pair);

    int qp_num(long pair);

    /** @param refused where it fails: the address of the first request that was not taken */
    int ibv_post_send(long pair, long request, MemorySegment refused);

    int ibv_post_recv(long pair, long request, MemorySegment refused);

    /** How many completions there were. */
    int ibv_poll_cq(long queue, int entries, MemorySegment completions);

    String ibv_wc_status_str(int status);
}
