package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.util.HashMap;
import java.util.Map;

/** Memory registered with one engine. Held and released by the messenger's thread, read by the worker. */
final class RegisteredRegion implements Region {
    private final RegionTable table;
    private final RegionDescriptor descriptor;
    private final Memory memory;
    /** Complete before the worker can see the region. */
    private final Map<Domain, RemoteKey> keys = new HashMap<>();

    private int holdCount;
    private boolean live = true;

    RegisteredRegion(RegionTable table, RegionDescriptor descriptor, Memory memory) {
        this.table = table;
        this.descriptor = descriptor;
        this.memory = memory;
    }

    @Override
    public RegionDescriptor descriptor() {
        return descriptor;
    }

    @Override
    public Memory memory() {
        return memory;
    }

    /** Registers it with a domain, if the domain can reach it. */
    void offerTo(Domain domain) {
        RemoteKey key = domain.register(this);
        if (key != null) {
            keys.put(domain, key);
        }
    }

    /** Whether some domain reaches it. */
    boolean isReachable() {
        return !keys.isEmpty();
    }

    /** Deregisters it from all domains. */
    void withdraw() {
        keys.forEach(Domain::deregister);
    }

    /** What a peer needs to write to it through a domain; null if it cannot. */
    RemoteKey keyOf(Domain domain) {
        return keys.get(domain);
    }

    boolean isLiveIn(RegionTable wanted) {
        return live && table == wanted;
    }

    /** Called when a window on it opens. */
    void hold() {
        holdCount++;
    }

    void release() {
        holdCount--;
    }

    @Override
    public void deregister() {
        if (holdCount > 0) {
            throw new IllegalStateException(
                    "region " + descriptor.regionId() + " has " + holdCount + " windows that may still be written to");
        }
        if (live) {
            live = false;
            table.remove(this);
        }
    }
}
