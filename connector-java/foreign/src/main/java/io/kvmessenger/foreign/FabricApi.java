package io.kvmessenger.foreign;

/**
 * Constants of libfabric, <a href="https://ofiwg.github.io/libfabric/v1.17.0/man/fabric.7.html">fabric(7)</a>, of API
 * 1.17, which this project requests from any newer library too. A mode and a flag may share a bit.
 */
public final class FabricApi {
    /** The API version passed to the library: {@code FI_VERSION(1, 17)}. */
    public static final int VERSION = 1 << 16 | 17;

    // capabilities, and flags of operations
    public static final long FI_RMA = 1L << 2;
    public static final long FI_WRITE = 1L << 9;
    public static final long FI_RECV = 1L << 10;
    public static final long FI_TRANSMIT = 1L << 11;
    public static final long FI_REMOTE_WRITE = 1L << 13;
    public static final long FI_REMOTE_CQ_DATA = 1L << 17;
    public static final long FI_SOURCE = 1L << 57;
    public static final long FI_NUMERICHOST = 1L << 55;

    // modes
    public static final long FI_CONTEXT = 1L << 59;
    public static final long FI_CONTEXT2 = 1L << 52;

    // modes of memory registration
    public static final int FI_MR_LOCAL = 1 << 2;
    public static final int FI_MR_VIRT_ADDR = 1 << 4;
    public static final int FI_MR_ALLOCATED = 1 << 5;
    public static final int FI_MR_PROV_KEY = 1 << 6;

    // formats of addresses
    public static final int FI_SOCKADDR = 1;
    public static final int FI_SOCKADDR_IN = 2;
    public static final int FI_SOCKADDR_IN6 = 3;

    public static final int FI_EP_RDM = 3;
    public static final int FI_THREAD_SAFE = 1;
    public static final int FI_AV_TABLE = 2;
    public static final int FI_CQ_FORMAT_DATA = 3;
    public static final int FI_WAIT_NONE = 0;
    public static final int FI_ENABLE = 6;

    public static final int FI_EAVAIL = 259;

    private FabricApi() {}
}
