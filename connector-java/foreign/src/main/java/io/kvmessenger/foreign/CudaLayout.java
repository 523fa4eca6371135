package io.kvmessenger.foreign;

/** Field offsets and sizes of the driver's structs on 64-bit Linux; they are part of its binary interface. */
public final class CudaLayout {
    /** {@code CUmemAllocationProp}. */
    public static final long ALLOCATION_PROP_SIZE_BYTES = 32;

    public static final long ALLOCATION_PROP_TYPE = 0;
    public static final long ALLOCATION_PROP_REQUESTEDHANDLETYPES = 4;
    public static final long ALLOCATION_PROP_LOCATION_TYPE = 8;
    public static final long ALLOCATION_PROP_LOCATION_ID = 12;
    /** One byte. */
    public static final long ALLOCATION_PROP_GPUDIRECTRDMACAPABLE = 25;

    /** {@code CUmemAccessDesc}. */
    public static final long ACCESS_DESC_SIZE_BYTES = 12;

    public static final long ACCESS_DESC_LOCATION_TYPE = 0;
    public static final long ACCESS_DESC_LOCATION_ID = 4;
    public static final long ACCESS_DESC_FLAGS = 8;

    /** {@code CUmemcpyAttributes}. */
    public static final long COPY_ATTRIBUTES_SIZE_BYTES = 24;

    public static final long COPY_ATTRIBUTES_SRCACCESSORDER = 0;

    /** {@code CUipcMemHandle}, an opaque value. */
    public static final long IPC_HANDLE_SIZE_BYTES = 64;

    private CudaLayout() {}
}
