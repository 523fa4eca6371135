package io.kvmessenger.foreign;

/**
 * Field offsets and sizes of libfabric's structs, from API 1.17 on, on 64-bit Linux.
 *
 * <p>Structs allocated by the caller have grown at their end since: they are allocated with {@link #SLACK_BYTES} of
 * trailing zeros. Structs allocated by the library may be longer than here; a table of operations contains its own
 * length.
 */
public final class FabricLayout {
    /** More than any struct has grown by. */
    public static final long SLACK_BYTES = 128;

    /** {@code struct fi_info}. */
    public static final long INFO_SIZE_BYTES = 120;

    public static final long INFO_NEXT = 0;
    public static final long INFO_CAPS = 8;
    public static final long INFO_MODE = 16;
    public static final long INFO_ADDR_FORMAT = 24;
    public static final long INFO_TX_ATTR = 72;
    public static final long INFO_EP_ATTR = 88;
    public static final long INFO_DOMAIN_ATTR = 96;
    public static final long INFO_FABRIC_ATTR = 104;

    /** {@code struct fi_tx_attr}. */
    public static final long TX_ATTR_SIZE_BYTES = 80;

    public static final long TX_ATTR_SIZE = 48;

    /** {@code struct fi_ep_attr}. */
    public static final long EP_ATTR_SIZE_BYTES = 96;

    public static final long EP_ATTR_TYPE = 0;
    public static final long EP_ATTR_PROTOCOL = 4;
    public static final long EP_ATTR_MAX_MSG_SIZE = 16;

    /** {@code struct fi_domain_attr}. */
    public static final long DOMAIN_ATTR_SIZE_BYTES = 192;

    public static final long DOMAIN_ATTR_NAME = 8;
    public static final long DOMAIN_ATTR_THREADING = 16;
    public static final long DOMAIN_ATTR_AV_TYPE = 32;
    public static final long DOMAIN_ATTR_MR_MODE = 36;
    public static final long DOMAIN_ATTR_MR_KEY_SIZE = 40;
    public static final long DOMAIN_ATTR_CQ_DATA_SIZE = 48;

    /** {@code struct fi_fabric_attr}. */
    public static final long FABRIC_ATTR_SIZE_BYTES = 32;

    public static final long FABRIC_ATTR_PROV_NAME = 16;

    /** {@code struct fi_cq_attr}. */
    public static final long CQ_ATTR_SIZE_BYTES = 40;

    public static final long CQ_ATTR_SIZE = 0;
    public static final long CQ_ATTR_FORMAT = 16;
    public static final long CQ_ATTR_WAIT_OBJ = 20;

    /** {@code struct fi_av_attr}. */
    public static final long AV_ATTR_SIZE_BYTES = 48;

    public static final long AV_ATTR_TYPE = 0;
    public static final long AV_ATTR_COUNT = 8;

    /** {@code struct fi_cq_data_entry}. */
    public static final long CQ_ENTRY_SIZE_BYTES = 40;

    public static final long CQ_ENTRY_CONTEXT = 0;
    public static final long CQ_ENTRY_FLAGS = 8;
    public static final long CQ_ENTRY_DATA = 32;

    /** {@code struct fi_cq_err_entry}. */
    public static final long CQ_ERROR_SIZE_BYTES = 80;

    public static final long CQ_ERROR_ERR = 56;
    public static final long CQ_ERROR_PROV_ERRNO = 60;
    public static final long CQ_ERROR_ERR_DATA = 64;

    /** {@code struct fi_context2}: required as an operation's context if the provider's mode says so. */
    public static final long CONTEXT_SIZE_BYTES = 64;

    // headers of objects, with their tables of operations
    public static final long FID_OPS = 16;
    public static final long FABRIC_OPS = 24;
    public static final long DOMAIN_OPS = 24;
    public static final long DOMAIN_MR = 32;
    public static final long EP_CM = 32;
    public static final long EP_RMA = 48;
    public static final long CQ_OPS = 24;
    public static final long AV_OPS = 24;
    public static final long MR_DESC = 24;
    public static final long MR_KEY = 32;

    // operations, in their tables
    public static final long OPS_SIZE = 0;
    public static final long OPS_CLOSE = 8;
    public static final long OPS_BIND = 16;
    public static final long OPS_CONTROL = 24;
    public static final long OPS_FABRIC_DOMAIN = 8;
    public static final long OPS_DOMAIN_AV_OPEN = 8;
    public static final long OPS_DOMAIN_CQ_OPEN = 16;
    public static final long OPS_DOMAIN_ENDPOINT = 24;
    public static final long OPS_MR_REG = 8;
    public static final long OPS_CM_GETNAME = 16;
    public static final long OPS_AV_INSERT = 8;
    public static final long OPS_CQ_READ = 8;
    public static final long OPS_CQ_READERR = 24;
    public static final long OPS_CQ_STRERROR = 56;
    public static final long OPS_RMA_WRITEDATA = 64;

    private FabricLayout() {}
}
