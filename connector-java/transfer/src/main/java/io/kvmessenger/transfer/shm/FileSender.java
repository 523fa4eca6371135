package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RegionSender;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;

/** Sends the descriptors of regions to one peer, in order of registration. Worker only. */
final class FileSender implements RegionSender {
    /** By the region's id. */
    private final IntFunction<RemoteKey> keys;

    private final OfferedRegions offered;
    private int lastOfferedId = OfferedRegions.NONE;
    private boolean allOfferedReported;

    FileSender(IntFunction<RemoteKey> keys, OfferedRegions offered) {
        this.keys = keys;
        this.offered = offered;
    }

    @Override
    public boolean offer(InboundChannel channel) {
        for (RemoteKey key = offered.after(lastOfferedId); key != null; key = offered.after(lastOfferedId)) {
            RegionRecord region = new RegionRecord(key.regionId(), key.lengthBytes());
            if (!channel.report(SameHostRecord.REGION_OFFERED, region.encode(), key.descriptor())) {
                return false;
            }
            lastOfferedId = key.regionId();
        }
        allOfferedReported = allOfferedReported || channel.report(SameHostRecord.ALL_OFFERED, MemorySegment.NULL);
        return allOfferedReported;
    }

    @Override
    public boolean answer(int regionId, InboundChannel channel) {
        RemoteKey key = keys.apply(regionId);
        if (key == null) {
            return channel.report(
                    SameHostRecord.REGION, RegionRecord.unknown(regionId).encode());
        }
        return channel.report(
                SameHostRecord.REGION, new RegionRecord(regionId, key.lengthBytes()).encode(), key.descriptor());
    }
}
