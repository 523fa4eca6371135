package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

/** The registered regions by id. Changed by the messenger's thread, read by the worker when a peer wants to map. */
final class RegionTable {
    private final ConcurrentHashMap<Integer, HostRegion> regions = new ConcurrentHashMap<>();
    private final LibC libC;
    private List<Domain> domains = List.of();
    private int lastId;

    RegionTable(LibC libC) {
        this.libC = libC;
    }

    /** Before the first region. */
    void use(List<Domain> all) {
        domains = List.copyOf(all);
    }

    HostRegion add(MemorySegment memory, int memfd) {
        if (!memory.isNative()) {
            throw new IllegalArgumentException("a region must be native memory, this is on the Java heap");
        }
        if (memfd != Region.NOT_SHAREABLE) {
            requireBacked(memory, memfd);
        }
        boolean shareable = memfd != Region.NOT_SHAREABLE && cannotShrink(memfd);
        var descriptor = new RegionDescriptor(++lastId, memory.byteSize(), RegionDescriptor.VERSION, shareable);
        HostRegion region = new HostRegion(this, descriptor, memory);
        for (Domain domain : domains) {
            region.offerTo(domain, shareable ? memfd : Region.NOT_SHAREABLE);
        }
        regions.put(lastId, region);
        return region;
    }

    /** Every admitted writer holds the descriptor: without the seal one of them could cut the memory off from all. */
    private boolean cannotShrink(int memfd) {
        int seals = libC.fcntl(memfd, MemoryApi.F_GET_SEALS, 0);
        return seals >= 0 && (seals & MemoryApi.F_SEAL_SHRINK) != 0;
    }

    private void requireBacked(MemorySegment memory, int memfd) {
        long fileBytes = libC.lseek(memfd, 0, MemoryApi.SEEK_END);
        if (fileBytes < memory.byteSize()) {
            String seen = fileBytes < 0 ? Errno.name((int) -fileBytes) : fileBytes + " bytes";
            throw new IllegalArgumentException("memfd " + memfd + " has " + seen + ", expected at least "
                    + memory.byteSize() + " bytes; pass the descriptor that the memory maps from offset 0, or -1");
        }
    }

    /** The region with this descriptor. */
    HostRegion require(RegionDescriptor descriptor) {
        HostRegion region = regions.get(descriptor.regionId());
        if (region == null || !region.descriptor().equals(descriptor)) {
            throw new IllegalArgumentException(
                    "region " + descriptor.regionId() + " is not registered with this engine");
        }
        return region;
    }

    void remove(HostRegion region) {
        regions.remove(region.descriptor().regionId());
        region.withdraw();
    }

    int count() {
        return regions.size();
    }

    /** Worker: what a peer needs to write to a region through a domain, or null. */
    RemoteKey keyOf(Domain domain, int regionId) {
        HostRegion region = regions.get(regionId);
        return region == null ? null : region.keyOf(domain);
    }

    /** Worker: whether every region can be written to through a domain. */
    boolean reachesAll(Domain domain) {
        return regions.values().stream().allMatch(region -> region.keyOf(domain) != null);
    }
}
