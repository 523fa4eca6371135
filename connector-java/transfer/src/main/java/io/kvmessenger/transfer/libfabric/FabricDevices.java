package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.spi.InboundPort;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;

/**
 * The regions in device memory that peers write to by frames. Changed by the messenger's thread, read by the worker
 * too.
 */
final class FabricDevices {
    private final InboundPort port;
    private final String provider;
    private final int slabsPerPeer;
    private final Map<Integer, Long> lengthsById = new ConcurrentHashMap<>();
    private final Set<String> notes = new ConcurrentSkipListSet<>();

    /** @param slabsPerPeer 0 to reach no device */
    FabricDevices(InboundPort port, String provider, int slabsPerPeer) {
        this.port = port;
        this.provider = provider;
        this.slabsPerPeer = slabsPerPeer;
    }

    /** Returns whether peers can write to the region by frames. */
    boolean add(Region region, Memory.Device memory) {
        boolean reached = slabsPerPeer > 0 && port.copiesTo(memory);
        if (reached) {
            lengthsById.put(region.descriptor().regionId(), memory.lengthBytes());
        }
        notes.add(
                reached
                        ? "libfabric reaches device " + memory.ordinal() + " staged, through " + slabsPerPeer
                                + " page-locked slabs for each peer: its provider " + provider
                                + " is given no device memory (FI_HMEM); landing_slabs set to 0 ends it"
                        : "libfabric does not receive for device " + memory.ordinal() + ": "
                                + (slabsPerPeer == 0
                                        ? "landing_slabs is 0"
                                        : "nothing copies to the device from host memory"));
        return reached;
    }

    void remove(int regionId) {
        lengthsById.remove(regionId);
    }

    boolean isEmpty() {
        return lengthsById.isEmpty();
    }

    /** Length of a region; negative if it is none of these. */
    long lengthBytes(int regionId) {
        return lengthsById.getOrDefault(regionId, -1L);
    }

    /** For each device: how its memory is reached, and why, in one line. */
    List<String> notes() {
        return List.copyOf(notes);
    }
}
