package io.kvmessenger.transfer.cuda;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.ImportedMemory;
import io.kvmessenger.transfer.samehost.MappedFile;
import io.kvmessenger.transfer.samehost.RegionRecord;
import java.util.HashMap;
import java.util.Map;
import java.util.function.IntSupplier;

/**
 * All regions that one peer has handed over. Worker only.
 *
 * <p>The peer's data is verified against the driver's; an impossible record is an {@link IllegalArgumentException},
 * memory that cannot be mapped an {@link IllegalStateException}.
 */
final class PeerMemories {
    /** Limit on regions: one for each rank's KV cache, and one for each kind of context row. */
    static final int REGIONS_MAX = 256;

    private final LibC libC;
    private final DeviceDriver driver;
    private final IntSupplier copier;
    private final Map<Integer, PeerMemory> memories = new HashMap<>();
    private int lastRegionId;
    private PeerMemory last;
    private int incompleteId;
    private ImportedMemory incomplete;

    PeerMemories(LibC libC, DeviceDriver driver, IntSupplier copier) {
        this.libC = libC;
        this.driver = driver;
        this.copier = copier;
    }

    /** @param fd stays the caller's */
    void addFile(RegionRecord region, int fd) {
        if (region == null || fd < 0) {
            throw new IllegalArgumentException("the peer offered a region without its descriptor");
        }
        requireNew(region.regionId());
        add(region.regionId(), new PeerMemory.InFile(MappedFile.map(libC, fd, region.lengthBytes())));
    }

    void addDevice(DeviceRecord device) {
        if (device == null) {
            throw new IllegalArgumentException("the peer offered device memory that cannot be");
        }
        requireNew(device.regionId());
        ImportedMemory memory = new ImportedMemory(driver, copier.getAsInt(), device.form());
        add(device.regionId(), new PeerMemory.OnDevice(memory));
        if (!memory.isComplete()) {
            incompleteId = device.regionId();
            incomplete = memory;
        }
    }

    private void requireNew(int regionId) {
        if (incomplete != null || memories.size() == REGIONS_MAX || memories.containsKey(regionId)) {
            throw new IllegalArgumentException("the peer offered region " + regionId
                    + " twice, one too many, or between" + " the parts of another");
        }
    }

    private void add(int regionId, PeerMemory memory) {
        memories.put(regionId, memory);
    }

    /** @param fd stays the caller's */
    void addPart(PartRecord part, int fd) {
        if (part == null || fd < 0 || incomplete == null || part.regionId() != incompleteId) {
            throw new IllegalArgumentException("the peer sent a part of no region");
        }
        incomplete.addPart(fd, part.lengthBytes());
        if (incomplete.isComplete()) {
            incomplete = null;
        }
    }

    /** Null if the region is not there, or incomplete. Allocates nothing for the region found last. */
    PeerMemory find(int regionId) {
        if (last == null || lastRegionId != regionId) {
            PeerMemory found = memories.get(regionId);
            if (found == null || !found.isComplete()) {
                return null;
            }
            lastRegionId = regionId;
            last = found;
        }
        return last;
    }

    boolean has(int regionId) {
        return memories.containsKey(regionId);
    }

    /**
     * Gives the copying device access, while another transport can still be selected instead.
     *
     * @throws io.kvmessenger.transfer.device.DeviceFault when it cannot reach the peer's device
     */
    void grantAccess() {
        for (PeerMemory memory : memories.values()) {
            if (memory instanceof PeerMemory.OnDevice device) {
                device.memory().addressFor(copier.getAsInt());
            }
        }
    }

    /** A context that has failed runs nothing any more, and what it maps is gone with it. */
    private static void closeIgnoringFaults(PeerMemory memory) {
        try {
            memory.close();
        } catch (DeviceFault e) {
            // The streams have reported why.
        }
    }

    /** Whether further parts are expected. */
    boolean isIncomplete() {
        return incomplete != null;
    }

    /** Closes all regions; no copy is queued any more. */
    void close() {
        memories.values().forEach(PeerMemories::closeIgnoringFaults);
        memories.clear();
        last = null;
        incomplete = null;
    }
}
