package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.PinnedMemory;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntSupplier;

/**
 * Regions of host memory that devices copy from, page-locked when they first do: such as context rows beside a KV cache on a device.
 *
 * <p>Called by the worker, but for {@link #release}, by the messenger's thread. What cannot be page-locked is copied all the same, only
 * slower: the driver then waits for it.
 */
final class PinnedSources {
    private final DeviceDriver driver;
    private final IntSupplier copier;
    /** By the region's id; empty for what cannot be, so that it is tried once. */
    private final Map<Integer, Optional<PinnedMemory>> pinned = new HashMap<>();

    PinnedSources(DeviceDriver driver, IntSupplier copier) {
        this.driver = driver;
        this.copier = copier;
    }

    synchronized void pin(Region region, Memory.Host host) {
        pinned.computeIfAbsent(region.descriptor().regionId(), id -> tryToPin(host));
    }

    private Optional<PinnedMemory> tryToPin(Memory.Host host) {
        try {
            return Optional.of(PinnedMemory.of(driver, copier.getAsInt(), host.bytes()));
        } catch (DeviceFault e) {
            return Optional.empty();
        }
    }

    /** Of a region that no write reads any more. */
    synchronized void release(int regionId) {
        Optional<PinnedMemory> memory = pinned.remove(regionId);
        if (memory != null) {
            memory.ifPresent(PinnedMemory::close);
        }
    }

    synchronized void close() {
        pinned.values().forEach(memory -> memory.ifPresent(PinnedMemory::close));
        pinned.clear();
    }
}
