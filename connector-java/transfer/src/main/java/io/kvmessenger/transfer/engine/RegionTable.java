package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

/** The registered regions by id. Changed by the messenger's thread; read by the worker when a peer wants to map one. */
final class RegionTable {
    private final ConcurrentHashMap<Integer, RegisteredRegion> regions = new ConcurrentHashMap<>();
    private final LibC libC;
    private final DeviceAccess devices;
    private List<Domain> domains = List.of();
    private int lastId;

    RegionTable(LibC libC) {
        this(libC, DeviceAccess.NONE);
    }

    /** @param devices copied to and from for domains that do not reach their memory */
    RegionTable(LibC libC, DeviceAccess devices) {
        this.libC = libC;
        this.devices = devices;
    }

    /** Sets the domains, before the first region is registered. */
    void use(List<Domain> all) {
        domains = List.copyOf(all);
    }

    RegisteredRegion add(Memory wanted) {
        Memory memory = switch (wanted) {
            case Memory.Host host -> checked(host);
            case Memory.Device device -> device;
        };
        boolean shareable = memory instanceof Memory.Host host && host.isShareable();
        var descriptor = new RegionDescriptor(lastId + 1, memory.lengthBytes(), RegionDescriptor.VERSION, shareable);
        RegisteredRegion region = new RegisteredRegion(this, descriptor, memory);
        domains.forEach(region::offerTo);
        if (memory instanceof Memory.Device && !region.isReachable()) {
            List<String> names = domains.stream().map(Domain::name).distinct().toList();
            throw new IllegalArgumentException(memory + " is reached by none of the transports " + names + ": "
                    + (names.contains(TransferOptions.TCP) ? "" : "name tcp among them, or ")
                    + "name cuda among them and allocate it so that other processes can map"
                    + " it, or place the KV cache in host memory" + notes());
        }
        regions.put(++lastId, region);
        return region;
    }

    /** The domains' notes on how they reach memory, as the end of a sentence. */
    private String notes() {
        String all = domains.stream()
                .flatMap(domain -> domain.notes().stream())
                .distinct()
                .collect(Collectors.joining("; "));
        return all.isEmpty() ? "" : " (" + all + ")";
    }

    /** Keeps memory shareable only if no peer could truncate it for all others. */
    private Memory.Host checked(Memory.Host host) {
        if (!host.bytes().isNative()) {
            throw new IllegalArgumentException("a region must be native memory, this is on the Java heap");
        }
        if (host.isShareable()) {
            requireBacked(host);
        }
        return host.isShareable() && cannotShrink(host.memfd()) ? host : Memory.host(host.bytes());
    }

    /** Every admitted writer holds the descriptor: without the seal any of them could truncate the memory for all. */
    private boolean cannotShrink(int memfd) {
        int seals = libC.fcntl(memfd, MemoryApi.F_GET_SEALS, 0);
        return seals >= 0 && (seals & MemoryApi.F_SEAL_SHRINK) != 0;
    }

    private void requireBacked(Memory.Host host) {
        long fileBytes = libC.lseek(host.memfd(), 0, MemoryApi.SEEK_END);
        if (fileBytes < host.lengthBytes()) {
            String seen = fileBytes < 0 ? Errno.name((int) -fileBytes) : fileBytes + " bytes";
            throw new IllegalArgumentException("memfd " + host.memfd() + " has " + seen + ", expected at least "
                    + host.lengthBytes() + " bytes; pass the descriptor that the memory maps from offset 0, or -1");
        }
    }

    RegisteredRegion require(RegionDescriptor descriptor) {
        RegisteredRegion region = regions.get(descriptor.regionId());
        if (region == null || !region.descriptor().equals(descriptor)) {
            throw new IllegalArgumentException(
                    "region " + descriptor.regionId() + " is not registered with this engine");
        }
        return region;
    }

    /** The domains that can send the memory registered now, directly or after gathering. */
    List<Domain> readers(List<Domain> all) {
        return all.stream()
                .filter(domain -> regions.values().stream().allMatch(region -> canSend(domain, region.memory())))
                .toList();
    }

    private boolean canSend(Domain domain, Memory memory) {
        return domain.canRead(memory)
                || (memory instanceof Memory.Device device
                        && domain.capabilities().readsGathered()
                        && devices.refusal(device.ordinal()) == null);
    }

    void remove(RegisteredRegion region) {
        regions.remove(region.descriptor().regionId());
        region.withdraw();
    }

    int count() {
        return regions.size();
    }

    /** Worker: what a peer needs to write to a region through a domain; null if it cannot. */
    RemoteKey keyOf(Domain domain, int regionId) {
        RegisteredRegion region = regions.get(regionId);
        return region == null ? null : region.keyOf(domain);
    }

    /** Worker: whether every region can be written to through a domain. */
    boolean reachesAll(Domain domain) {
        return regions.values().stream().allMatch(region -> region.keyOf(domain) != null);
    }
}
