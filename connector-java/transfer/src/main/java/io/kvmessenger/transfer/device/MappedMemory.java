package io.kvmessenger.transfer.device;

import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * The page-locked host memory that a device's kernels reach under the host's own addresses.
 *
 * <p>Safe from any thread; asked without a lock. It knows addresses only, and holds no memory.
 */
final class MappedMemory {
    /** First address and the one behind the last, range by range; replaced as a whole. */
    private volatile long[] bounds = {};

    synchronized void add(MemorySegment memory) {
        long[] more = Arrays.copyOf(bounds, bounds.length + 2);
        more[more.length - 2] = memory.address();
        more[more.length - 1] = memory.address() + memory.byteSize();
        bounds = more;
    }

    /** Does nothing for memory that was not added. */
    synchronized void remove(MemorySegment memory) {
        long[] old = bounds;
        for (int i = 0; i < old.length; i += 2) {
            if (old[i] == memory.address()) {
                long[] fewer = Arrays.copyOf(old, old.length - 2);
                System.arraycopy(old, i + 2, fewer, i, fewer.length - i);
                bounds = fewer;
                return;
            }
        }
    }

    /** Whether one range has all addresses from {@code begin} to before {@code end}. */
    boolean contains(long begin, long end) {
        long[] now = bounds;
        for (int i = 0; i < now.length; i += 2) {
            if (begin >= now[i] && end <= now[i + 1]) {
                return true;
            }
        }
        return false;
    }
}
