package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.samehost.SameHostRecord;

/** Kinds of records for device memory, in addition to {@link SameHostRecord}'s. */
final class CudaRecord {
    /** Target: a {@link DeviceRecord}; the region's parts follow. */
    static final int DEVICE_OFFERED = SameHostRecord.NEXT_KIND;

    /** Target: a {@link PartRecord}, with its descriptor: the next part of the last offered region. */
    static final int PART = SameHostRecord.NEXT_KIND + 1;

    private CudaRecord() {}
}
