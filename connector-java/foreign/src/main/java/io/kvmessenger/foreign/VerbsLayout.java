package io.kvmessenger.foreign;

/**
 * Field offsets and sizes of libibverbs' structs on 64-bit Linux. They are part of its binary interface: inline
 * functions of its headers are compiled into every program that uses it.
 */
public final class VerbsLayout {
    /** {@code struct ibv_device_attr}. */
    public static final long DEVICE_ATTR_SIZE_BYTES = 232;

    public static final long DEVICE_ATTR_MAX_QP_WR = 112;
    public static final long DEVICE_ATTR_MAX_CQE = 132;
    public static final long DEVICE_ATTR_PHYS_PORT_CNT = 227;

    /** {@code struct ibv_port_attr}. */
    public static final long PORT_ATTR_SIZE_BYTES = 52;

    public static final long PORT_ATTR_STATE = 0;
    public static final long PORT_ATTR_ACTIVE_MTU = 8;
    public static final long PORT_ATTR_GID_TBL_LEN = 12;
    public static final long PORT_ATTR_MAX_MSG_SZ = 20;
    public static final long PORT_ATTR_LID = 34;
    public static final long PORT_ATTR_LINK_LAYER = 46;

    /** {@code struct ibv_gid_entry}. */
    public static final long GID_ENTRY_SIZE_BYTES = 32;

    public static final long GID_ENTRY_GID = 0;
    public static final long GID_ENTRY_GID_TYPE = 24;

    /** {@code struct ibv_qp_init_attr}. */
    public static final long QP_INIT_ATTR_SIZE_BYTES = 64;

    public static final long QP_INIT_ATTR_SEND_CQ = 8;
    public static final long QP_INIT_ATTR_RECV_CQ = 16;
    public static final long QP_INIT_ATTR_CAP_MAX_SEND_WR = 32;
    public static final long QP_INIT_ATTR_CAP_MAX_RECV_WR = 36;
    public static final long QP_INIT_ATTR_CAP_MAX_SEND_SGE = 40;
    public static final long QP_INIT_ATTR_CAP_MAX_RECV_SGE = 44;
    public static final long QP_INIT_ATTR_QP_TYPE = 52;

    /** {@code struct ibv_qp_attr}. */
    public static final long QP_ATTR_SIZE_BYTES = 144;

    public static final long QP_ATTR_QP_STATE = 0;
    public static final long QP_ATTR_PATH_MTU = 8;
    public static final long QP_ATTR_RQ_PSN = 20;
    public static final long QP_ATTR_SQ_PSN = 24;
    public static final long QP_ATTR_DEST_QP_NUM = 28;
    public static final long QP_ATTR_QP_ACCESS_FLAGS = 32;
    public static final long QP_ATTR_AH_DGID = 56;
    public static final long QP_ATTR_AH_SGID_INDEX = 76;
    public static final long QP_ATTR_AH_HOP_LIMIT = 77;
    public static final long QP_ATTR_AH_TRAFFIC_CLASS = 78;
    public static final long QP_ATTR_AH_DLID = 80;
    public static final long QP_ATTR_AH_SL = 82;
    public static final long QP_ATTR_AH_IS_GLOBAL = 85;
    public static final long QP_ATTR_AH_PORT_NUM = 86;
    public static final long QP_ATTR_PKEY_INDEX = 120;
    public static final long QP_ATTR_MAX_RD_ATOMIC = 126;
    public static final long QP_ATTR_MAX_DEST_RD_ATOMIC = 127;
    public static final long QP_ATTR_MIN_RNR_TIMER = 128;
    public static final long QP_ATTR_PORT_NUM = 129;
    public static final long QP_ATTR_TIMEOUT = 130;
    public static final long QP_ATTR_RETRY_CNT = 131;
    public static final long QP_ATTR_RNR_RETRY = 132;

    /** {@code struct ibv_send_wr}. */
    public static final long SEND_WR_SIZE_BYTES = 128;

    public static final long SEND_WR_WR_ID = 0;
    public static final long SEND_WR_NEXT = 8;
    public static final long SEND_WR_SG_LIST = 16;
    public static final long SEND_WR_NUM_SGE = 24;
    public static final long SEND_WR_OPCODE = 28;
    public static final long SEND_WR_SEND_FLAGS = 32;
    public static final long SEND_WR_IMM_DATA = 36;
    public static final long SEND_WR_REMOTE_ADDR = 40;
    public static final long SEND_WR_RKEY = 48;

    /** {@code struct ibv_recv_wr}. */
    public static final long RECV_WR_SIZE_BYTES = 32;

    public static final long RECV_WR_NEXT = 8;

    /** {@code struct ibv_sge}. */
    public static final long SGE_SIZE_BYTES = 16;

    public static final long SGE_ADDR = 0;
    public static final long SGE_LENGTH = 8;
    public static final long SGE_LKEY = 12;

    /** {@code struct ibv_wc}. */
    public static final long WC_SIZE_BYTES = 48;

    public static final long WC_WR_ID = 0;
    public static final long WC_STATUS = 8;
    public static final long WC_OPCODE = 12;
    public static final long WC_VENDOR_ERR = 16;
    public static final long WC_IMM_DATA = 24;

    // fields of the library's objects
    static final long CONTEXT_OPS_POLL_CQ = 96;
    static final long CONTEXT_OPS_POST_SEND = 208;
    static final long CONTEXT_OPS_POST_RECV = 216;
    static final long QP_CONTEXT = 0;
    static final long QP_QP_NUM = 52;
    static final long CQ_CONTEXT = 0;
    static final long MR_LKEY = 36;
    static final long MR_RKEY = 40;

    private VerbsLayout() {}
}
