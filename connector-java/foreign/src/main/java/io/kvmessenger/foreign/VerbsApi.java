package io.kvmessenger.foreign;

/**
 * Constants of libibverbs, from rdma-core's
 * <a href="https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html">manual</a> and headers.
 */
public final class VerbsApi {
    // kinds of queue pairs, and their states
    public static final int IBV_QPT_RC = 2;
    public static final int IBV_QPS_INIT = 1;
    public static final int IBV_QPS_RTR = 2;
    public static final int IBV_QPS_RTS = 3;
    public static final int IBV_QPS_ERR = 6;

    // which of a queue pair's attributes are set
    public static final int IBV_QP_STATE = 1;
    public static final int IBV_QP_ACCESS_FLAGS = 1 << 3;
    public static final int IBV_QP_PKEY_INDEX = 1 << 4;
    public static final int IBV_QP_PORT = 1 << 5;
    public static final int IBV_QP_AV = 1 << 7;
    public static final int IBV_QP_PATH_MTU = 1 << 8;
    public static final int IBV_QP_TIMEOUT = 1 << 9;
    public static final int IBV_QP_RETRY_CNT = 1 << 10;
    public static final int IBV_QP_RNR_RETRY = 1 << 11;
    public static final int IBV_QP_RQ_PSN = 1 << 12;
    public static final int IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    public static final int IBV_QP_MIN_RNR_TIMER = 1 << 15;
    public static final int IBV_QP_SQ_PSN = 1 << 16;
    public static final int IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    public static final int IBV_QP_DEST_QPN = 1 << 20;

    // operations and their flags
    public static final int IBV_WR_RDMA_WRITE = 0;
    public static final int IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    public static final int IBV_SEND_SIGNALED = 1 << 1;

    // completions
    public static final int IBV_WC_SUCCESS = 0;
    public static final int IBV_WC_WR_FLUSH_ERR = 5;
    public static final int IBV_WC_RETRY_EXC_ERR = 12;
    public static final int IBV_WC_RECV_RDMA_WITH_IMM = 129;

    // permitted uses of memory
    public static final int IBV_ACCESS_LOCAL_WRITE = 1;
    public static final int IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    /** Dropped by {@code ibv_reg_mr_iova2} if the kernel does not know it. */
    public static final int IBV_ACCESS_RELAXED_ORDERING = 1 << 20;

    // ports and their addresses
    public static final int IBV_PORT_ACTIVE = 4;
    public static final int IBV_LINK_LAYER_ETHERNET = 2;
    public static final int IBV_GID_TYPE_IB = 0;
    public static final int IBV_GID_TYPE_ROCE_V2 = 2;

    private VerbsApi() {}
}
