package io.kvmessenger.messenger.port;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.List;

/**
 * The memories of one local rank, registered with the transfer engine. A value.
 *
 * @param regions by the memory index of {@link io.kvmessenger.kvlayout.LayerGeometry}
 */
public record RankMemory(List<Region> regions) {
    public RankMemory {
        regions = List.copyOf(regions);
    }

    /** Whether any of it is device memory, which the CPU cannot read. */
    public boolean onDevice() {
        return regions.stream().anyMatch(region -> region.memory() instanceof Memory.Device);
    }

    public List<RegionDescriptor> descriptors() {
        return regions.stream().map(Region::descriptor).toList();
    }
}
