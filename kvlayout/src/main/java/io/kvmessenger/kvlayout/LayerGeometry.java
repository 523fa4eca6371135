package io.kvmessenger.kvlayout;

/**
 * Where a layer's pages lie in the rank's region: page {@code p} is {@code pageBytes} bytes at {@code offsetBytes + p *
 * pageStrideBytes}.
 */
public record LayerGeometry(String name, long offsetBytes, long pageStrideBytes, int pageBytes) {
    public LayerGeometry {
        if (name.isEmpty()) {
            throw new IllegalArgumentException("a layer has no name");
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

    public long pageOffsetBytes(int pageIndex) {
        return offsetBytes + pageIndex * pageStrideBytes;
    }

    /** Where the last of {@code pageCount} pages ends; overflow is an error. */
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
