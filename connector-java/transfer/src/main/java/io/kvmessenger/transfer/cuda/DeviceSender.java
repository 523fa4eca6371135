package io.kvmessenger.transfer.cuda;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.device.DeviceExport;
import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RegionSender;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;

/**
 * Sends all regions to one peer, in order of registration: files as they are, device memory part by part. Worker only.
 *
 * <p>A descriptor is opened only when there is room for it, and closed after sending: a region may have more parts than
 * a process may have descriptors.
 */
final class DeviceSender implements RegionSender {
    /** Limit for one duty cycle: each part takes a few driver calls. */
    private static final int PARTS_A_TURN = 64;

    private final LibC libC;
    private final IntFunction<RemoteKey> keys;
    private final IntFunction<DeviceExport> exports;
    private final OfferedRegions offered;
    private int lastOfferedId = OfferedRegions.NONE;
    private boolean allOfferedReported;
    /** The region whose parts are being sent; null when there is none. */
    private DeviceExport current;

    private int nextPart;

    /**
     * @param keys by region id; null for a deregistered region
     * @param exports by region id; null for a region of host memory, and for a deregistered one
     */
    DeviceSender(LibC libC, IntFunction<RemoteKey> keys, IntFunction<DeviceExport> exports, OfferedRegions offered) {
        this.libC = libC;
        this.keys = keys;
        this.exports = exports;
        this.offered = offered;
    }

    @Override
    public boolean offer(InboundChannel channel) {
        int partsLeft = PARTS_A_TURN;
        while (reportParts(partsLeft, channel)) {
            RemoteKey next = offered.after(lastOfferedId);
            if (next == null) {
                allOfferedReported =
                        allOfferedReported || channel.report(SameHostRecord.ALL_OFFERED, MemorySegment.NULL);
                return allOfferedReported;
            }
            if (!reportRegion(next, channel)) {
                return false;
            }
            lastOfferedId = next.regionId();
            partsLeft = PARTS_A_TURN;
        }
        return false;
    }

    /** Sends parts of the current region; returns whether all have been sent. */
    private boolean reportParts(int partsMax, InboundChannel channel) {
        for (int left = partsMax; current != null && left > 0; left--) {
            if (!reportPart(channel)) {
                return false;
            }
        }
        return current == null;
    }

    private boolean reportRegion(RemoteKey key, InboundChannel channel) {
        if (key.descriptor() >= 0) {
            RegionRecord file = new RegionRecord(key.regionId(), key.lengthBytes());
            return channel.report(SameHostRecord.REGION_OFFERED, file.encode(), key.descriptor());
        }
        DeviceExport export = exports.apply(key.regionId());
        if (export == null) {
            return true; // it has just been deregistered
        }
        if (!channel.report(CudaRecord.DEVICE_OFFERED, new DeviceRecord(key.regionId(), export.form()).encode())) {
            return false;
        }
        current = export.form().isLegacy() ? null : export;
        nextPart = 0;
        return true;
    }

    private boolean reportPart(InboundChannel channel) {
        int fd = current.openPart(nextPart);
        try {
            PartRecord part = new PartRecord(lastOfferedId, current.partBytes(nextPart));
            if (!channel.report(CudaRecord.PART, part.encode(), fd)) {
                return false;
            }
        } finally {
            libC.close(fd);
        }
        if (++nextPart == current.form().partCount()) {
            current = null;
        }
        return true;
    }

    /** An existing region has been or will be offered, so a request needs no answer. */
    @Override
    public boolean answer(int regionId, InboundChannel channel) {
        return keys.apply(regionId) != null
                || channel.report(
                        SameHostRecord.REGION, RegionRecord.unknown(regionId).encode());
    }
}
