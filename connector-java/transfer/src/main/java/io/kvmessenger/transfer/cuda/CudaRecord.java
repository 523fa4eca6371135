package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.samehost.SameHostRecord;

/** Kinds of records that only device memory needs. */
final class CudaRecord {
    /** Target: a {@link DeviceRecord}; its parts follow. */
    static final int DEVICE_OFFERED = SameHostRecord.NEXT_KIND;

    /** Target: a {@link PartRecord}, with its descriptor: the next part of the region that was offered last. */
    static final int PART = SameHostRecord.NEXT_KIND + 1;

    private CudaRecord() {}
}
