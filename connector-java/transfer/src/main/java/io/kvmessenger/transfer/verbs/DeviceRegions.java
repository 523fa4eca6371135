package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DmaBuf;
import io.kvmessenger.transfer.device.NicWrites;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Device memory that RDMA devices access directly, by dma-buf. Each region is registered with all of an engine's RDMA
 * devices or with none, since any of them may carry a peer's writes.
 *
 * <p>Changed by the messenger's thread, which also reads the notes; any thread may ask what is registered;
 * {@link #makeVisible} is the worker's.
 */
final class DeviceRegions {
    private record Reached(int regionId, Memory.Device memory, NicWrites writes) {}

    private final List<Nic> nics;
    private final DeviceAccess access;
    private final LibC libC;
    private final boolean wanted;
    private final Set<String> notes = new LinkedHashSet<>();

    /** Replaced as a whole. */
    private volatile Reached[] reached = new Reached[0];

    /** One for each device that does not order NIC writes itself; replaced as a whole. */
    private volatile NicWrites[] unordered = new NicWrites[0];

    /** @param wanted whether device memory may be registered at all */
    DeviceRegions(List<Nic> nics, DeviceAccess access, LibC libC, boolean wanted) {
        this.nics = nics;
        this.access = access;
        this.libC = libC;
        this.wanted = wanted;
    }

    /** Registers memory with all RDMA devices; returns whether that succeeded, as {@link #notes} explain. */
    boolean add(int regionId, Memory.Device memory) {
        if (!wanted) {
            return false;
        }
        try {
            NicWrites writes = writesTo(memory.ordinal());
            register(regionId, memory);
            List<Reached> all = new ArrayList<>(List.of(reached));
            all.add(new Reached(regionId, memory, writes));
            use(all);
        } catch (IllegalStateException e) {
            notes.add("verbs reaches " + memory + " through host memory only: " + e.getMessage());
            return false;
        }
        notes.add("verbs reaches " + memory + " directly, by dma-buf, through "
                + nics.stream().map(Nic::device).collect(Collectors.joining(", "))
                + ": this has never run on hardware (docs/hardware.md); dma_buf set to false ends it");
        return true;
    }

    private NicWrites writesTo(int ordinal) {
        String absent = access.refusal(ordinal);
        if (absent != null) {
            throw new IllegalStateException(absent);
        }
        for (Reached region : reached) {
            if (region.memory.ordinal() == ordinal) {
                return region.writes;
            }
        }
        return access.nicWrites(ordinal);
    }

    /** Exports the memory and registers it; the descriptor is closed afterwards. */
    private void register(int regionId, Memory.Device memory) {
        DmaBuf exported = access.exportDmaBuf(memory);
        boolean registered = false;
        try {
            for (Nic nic : nics) {
                nic.regions().addDmaBuf(regionId, memory, exported.fd(), exported.offsetBytes());
            }
            registered = true;
        } finally {
            libC.close(exported.fd());
            if (!registered) {
                nics.forEach(nic -> nic.regions().remove(regionId));
            }
        }
    }

    /** Forgets a region whose registrations have ended, or that is not in device memory. */
    void remove(int regionId) {
        use(List.of(reached).stream()
                .filter(region -> region.regionId != regionId)
                .toList());
    }

    private void use(List<Reached> all) {
        unordered = all.stream()
                .map(Reached::writes)
                .filter(writes -> writes != NicWrites.ORDERED)
                .distinct()
                .toArray(NicWrites[]::new);
        reached = all.toArray(Reached[]::new);
    }

    /** Whether the RDMA devices access this memory directly. Allocates nothing. */
    boolean has(Memory.Device memory) {
        for (Reached region : reached) {
            if (region.memory.equals(memory)) {
                return true;
            }
        }
        return false;
    }

    /**
     * Makes all completed writes visible to kernels launched from now on. Allocates nothing.
     *
     * @throws io.kvmessenger.transfer.device.DeviceFault when that cannot be ensured
     */
    void makeVisible() {
        for (NicWrites writes : unordered) {
            writes.makeVisible();
        }
    }

    /** For each device: how its memory is reached, and why, in one line. */
    List<String> notes() {
        return List.copyOf(notes);
    }
}
