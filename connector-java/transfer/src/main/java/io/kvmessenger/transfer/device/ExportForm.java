package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaLayout;
import java.util.Arrays;
import java.util.Objects;

/**
 * What an importer has to know about exported memory before the first descriptor. A value; the array is not changed.
 *
 * @param lengthBytes of the region
 * @param offsetBytes start of the region within the mapping
 * @param mappedBytes length of the mapping: all handles that the region touches, or the whole legacy allocation
 * @param partCount number of descriptors that follow, in order; {@link #LEGACY} if a handle replaces them
 * @param legacyHandle opaque to all but the driver
 */
public record ExportForm(long lengthBytes, long offsetBytes, long mappedBytes, int partCount, byte[] legacyHandle) {
    public static final int LEGACY = 0;

    /** Limit for one region: each part costs a record, and the importer a call or two. */
    public static final int PARTS_MAX = 1 << 16;

    /** @throws IllegalArgumentException naming what is impossible */
    public ExportForm {
        if (lengthBytes <= 0
                || offsetBytes < 0
                || mappedBytes <= 0
                || offsetBytes > mappedBytes - lengthBytes
                || partCount < 0
                || partCount > PARTS_MAX
                || legacyHandle.length != CudaLayout.IPC_HANDLE_SIZE_BYTES) {
            throw new IllegalArgumentException("device memory of " + lengthBytes + " bytes at " + offsetBytes + " of "
                    + mappedBytes + ", in " + partCount + " parts");
        }
    }

    public boolean isLegacy() {
        return partCount == LEGACY;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ExportForm form
                && lengthBytes == form.lengthBytes
                && offsetBytes == form.offsetBytes
                && mappedBytes == form.mappedBytes
                && partCount == form.partCount
                && Arrays.equals(legacyHandle, form.legacyHandle);
    }

    @Override
    public int hashCode() {
        return Objects.hash(lengthBytes, offsetBytes, mappedBytes, partCount, Arrays.hashCode(legacyHandle));
    }

    @Override
    public String toString() {
        return lengthBytes + " bytes at " + offsetBytes + " of " + mappedBytes + " bytes in " + partCount + " parts";
    }
}
