package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.MemorySegment;

/** {@code struct iovec}: one run of bytes for readv and writev; arrays of them are one segment. Not synchronized. */
public final class IoVector {
    public static final long SIZE_BYTES = 16;
    public static final long BASE_OFFSET = 0;
    public static final long LENGTH_OFFSET = 8;
    /** Limit on the vectors of one call. */
    public static final int COUNT_MAX = 1024;

    private IoVector() {}

    public static void set(MemorySegment vectors, int index, long address, long lengthBytes) {
        vectors.set(JAVA_LONG, index * SIZE_BYTES + BASE_OFFSET, address);
        vectors.set(JAVA_LONG, index * SIZE_BYTES + LENGTH_OFFSET, lengthBytes);
    }

    public static long address(MemorySegment vectors, int index) {
        return vectors.get(JAVA_LONG, index * SIZE_BYTES + BASE_OFFSET);
    }

    public static long lengthBytes(MemorySegment vectors, int index) {
        return vectors.get(JAVA_LONG, index * SIZE_BYTES + LENGTH_OFFSET);
    }
}
