package io.kvmessenger.testkit.device;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.VerbsApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;

/**
 * What the devices of {@link LoopbackVerbs} have registered: of this process's memory, or of a device's by a dma-buf.
 *
 * <p>One call at a time. A key that is another device's, a range that leaves its region, and a write where none is allowed are faults
 * of what is tested, and end the test.
 */
final class LoopbackMemories {
    private static final long HOST = -1;

    /** @param nicRegion its number with the stand-in, or {@link #HOST} */
    record Registered(long device, long address, long lengthBytes, int access, long nicRegion) {}

    private final StandInCuda standIn;
    private final Map<Long, Registered> byKey = new HashMap<>();

    LoopbackMemories(StandInCuda standIn) {
        this.standIn = standIn;
    }

    int count() {
        return byKey.size();
    }

    long add(long key, long device, long address, long lengthBytes, int access) {
        byKey.put(key, new Registered(device, address, lengthBytes, access, HOST));
        return key;
    }

    /** The address is as far into a page as the offset, as the manual wants it. */
    long addDmaBuf(long key, long device, long offsetBytes, long lengthBytes, long address, int fd, int access) {
        boolean sameOffset = (address - offsetBytes) % ForeignMemory.PAGE_BYTES == 0;
        long nicRegion = sameOffset ? standIn.nicRegister(fd, offsetBytes, lengthBytes) : HOST;
        if (nicRegion == HOST) {
            return -Errno.EINVAL;
        }
        byKey.put(key, new Registered(device, address, lengthBytes, access, nicRegion));
        return key;
    }

    void remove(long key) {
        Registered removed = byKey.remove(key);
        if (removed.nicRegion != HOST) {
            standIn.nicDeregister(removed.nicRegion);
        }
    }

    Registered of(int key, long device) {
        Registered found = byKey.get((long) key);
        if (found == null || found.device != device) {
            throw new AssertionError("key " + key + " is none of device " + device);
        }
        return found;
    }

    byte[] read(Registered from, long address, int lengthBytes) {
        long offsetBytes = offset(from, address, lengthBytes);
        if (from.nicRegion == HOST) {
            return ForeignMemory.at(address, lengthBytes).toArray(JAVA_BYTE);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(lengthBytes);
            require(standIn.nicRead(from.nicRegion, offsetBytes, bytes));
            return bytes.toArray(JAVA_BYTE);
        }
    }

    void write(Registered to, long address, byte[] bytes) {
        long offsetBytes = offset(to, address, bytes.length);
        require((to.access & VerbsApi.IBV_ACCESS_REMOTE_WRITE) != 0);
        if (to.nicRegion == HOST) {
            ForeignMemory.at(address, bytes.length).copyFrom(MemorySegment.ofArray(bytes));
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            require(standIn.nicWrite(to.nicRegion, offsetBytes, arena.allocateFrom(JAVA_BYTE, bytes)));
        }
    }

    private static long offset(Registered region, long address, long lengthBytes) {
        long offsetBytes = address - region.address;
        require(offsetBytes >= 0 && lengthBytes <= region.lengthBytes - offsetBytes);
        return offsetBytes;
    }

    private static void require(boolean holds) {
        if (!holds) {
            throw new AssertionError("memory that is not registered for it");
        }
    }
}
