package io.kvmessenger.kvlayout;

/**
 * Where a layer's pages lie: page {@code p} is {@code pageBytes} bytes at {@code offsetBytes + p * pageStrideBytes} of
 * one of the rank's memories.
 *
 * @param groupIndex index of the layer's group in the geometry
 * @param memoryIndex index of the rank's memory
 */
public record LayerGeometry(
        String name, int groupIndex, int memoryIndex, long offsetBytes, long pageStrideBytes, int pageBytes) {
    /** More memories than a rank can have; bounds the cost of malformed input. */
    public static final int MEMORY_INDEX_MAX = (1 << 14) - 1;

    public LayerGeometry {
        if (name.isEmpty()) {
            throw new IllegalArgumentException("a layer has no name");
        }
        if (groupIndex < 0) {
            throw new IllegalArgumentException(
                    "groupIndex of layer \"" + name + "\" is " + groupIndex + ", expected at least 0");
        }
        if (memoryIndex < 0 || memoryIndex > MEMORY_INDEX_MAX) {
            throw new IllegalArgumentException(
                    "memoryIndex of layer \"" + name + "\" is " + memoryIndex + ", expected 0 to " + MEMORY_INDEX_MAX);
        }
        if (offsetBytes < 0) {
            throw new IllegalArgumentException(
                    "offsetBytes of layer \"" + name + "\" is " + offsetBytes + ", expected at least 0");
        }
        if (pageBytes < 1) {
            throw new IllegalArgumentException(
                    "pageBytes of layer \"" + name + "\" is " + pageBytes + ", expected at least 1");
        }
        if (pageStrideBytes < pageBytes) {
            throw new IllegalArgumentException("pageStrideBytes of layer \"" + name + "\" is " + pageStrideBytes
                    + ", expected at least its pageBytes, " + pageBytes);
        }
    }

    /** A layer of the only group, in the rank's only memory. */
    public LayerGeometry(String name, long offsetBytes, long pageStrideBytes, int pageBytes) {
        this(name, 0, 0, offsetBytes, pageStrideBytes, pageBytes);
    }

    public long pageOffsetBytes(int pageIndex) {
        return offsetBytes + pageIndex * pageStrideBytes;
    }

    /** End of the last of {@code pageCount} pages; overflow is an error. */
    long endBytes(int pageCount) {
        try {
            long lastPage = Math.multiplyExact(pageStrideBytes, (long) pageCount - 1);
            return Math.addExact(Math.addExact(offsetBytes, lastPage), pageBytes);
        } catch (ArithmeticException e) {
            throw new IllegalArgumentException(
                    "layer \"" + name + "\" ends beyond 2^63 bytes with " + pageCount + " pages", e);
        }
    }
}
