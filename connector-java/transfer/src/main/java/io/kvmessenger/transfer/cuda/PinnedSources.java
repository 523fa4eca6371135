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
 * Regions of host memory that devices copy from, such as context rows of a KV cache on a device; page-locked on first
 * use.
 *
 * <p>Called by the worker, except {@link #release}, by the messenger's thread. If page-locking fails, memory is copied
 * all the same, only slower, as the driver blocks meanwhile.
 */
final class PinnedSources {
    private final DeviceDriver driver;
    private final IntSupplier copier;
    /** By region id; empty where page-locking failed, so that it is tried only once. */
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

    /** Releases a region that no write reads any more. */
    synchronized void release(int regionId) {
        Optional<PinnedMemory> memory = pinned.remove(regionId);
        if (memory != null) {
            memory.ifPresent(PinnedMemory::giveUp);
        }
    }

    synchronized void close() {
        pinned.values().forEach(memory -> memory.ifPresent(PinnedMemory::giveUp));
        pinned.clear();
    }
}
