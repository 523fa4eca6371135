package io.kvmessenger.transfer.samehost;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;

/**
 * SPSC ring of immediates from one writer to one target, in memory that both map.
 *
 * <p>One worker pushes, the other takes; each has its own object. A push releases and a take acquires, so whatever the
 * writer copied before the push is visible after the take. Nothing that the peer writes here is trusted as an index.
 */
public final class ImmRing {
    public static final int CAPACITY = 1 << 14;
    public static final long LENGTH_BYTES = 4096 + (long) CAPACITY * Integer.BYTES;

    /** Returned by a take that found nothing; no immediate is zero. */
    public static final int EMPTY = 0;

    private static final VarHandle LONG = ValueLayout.JAVA_LONG.varHandle();
    private static final VarHandle INT = ValueLayout.JAVA_INT.varHandle();
    /** Each on a cache line of its own. */
    private static final long PUSHED_OFFSET = 0;

    private static final long TAKEN_OFFSET = 64;
    private static final long PARKED_OFFSET = 128;
    private static final long QUIET_OFFSET = 192;
    private static final long SLOTS_OFFSET = 4096;
    private static final int AWAKE = 0;
    private static final int PARKED = 1;
    private static final int WRITING = 0;
    private static final int QUIET = 1;

    private final MemorySegment memory;
    private long position;
    private long peerPosition;
    private boolean sound = true;

    /** @param memory {@link #LENGTH_BYTES} long, zeroed before the first of the two objects is created */
    public ImmRing(MemorySegment memory) {
        this.memory = memory;
    }

    /** Writer: false when the ring is full. */
    public boolean push(int imm) {
        if (position - peerPosition >= CAPACITY) {
            peerPosition = (long) LONG.getAcquire(memory, TAKEN_OFFSET);
            if (position - peerPosition >= CAPACITY) {
                return false;
            }
        }
        memory.set(ValueLayout.JAVA_INT, slot(position), imm);
        LONG.setRelease(memory, PUSHED_OFFSET, ++position);
        return true;
    }

    /** Writer: whether a push would succeed. */
    public boolean hasRoom() {
        if (position - peerPosition >= CAPACITY) {
            peerPosition = (long) LONG.getAcquire(memory, TAKEN_OFFSET);
        }
        return position - peerPosition < CAPACITY;
    }

    /** Writer, after pushing: whether the target sleeps and has to be woken; true once for each sleep. */
    public boolean claimWake() {
        VarHandle.fullFence();
        return (int) INT.getOpaque(memory, PARKED_OFFSET) == PARKED
                && INT.compareAndSet(memory, PARKED_OFFSET, PARKED, AWAKE);
    }

    /** Writer, at last: nothing of it writes any more, by a device neither. There is always room for that. */
    public void showQuiet() {
        INT.setRelease(memory, QUIET_OFFSET, QUIET);
    }

    /** Target: whether the writer has shown that. A writer of an earlier release sends it as a record only. */
    public boolean isQuiet() {
        return (int) INT.getAcquire(memory, QUIET_OFFSET) != WRITING;
    }

    /** Target: the next immediate, or {@link #EMPTY}. */
    public int take() {
        if (position == peerPosition) {
            long pushed = (long) LONG.getAcquire(memory, PUSHED_OFFSET);
            sound &= pushed >= position && pushed - position <= CAPACITY;
            if (!sound || position == pushed) {
                return EMPTY;
            }
            peerPosition = pushed;
        }
        int imm = memory.get(ValueLayout.JAVA_INT, slot(position));
        LONG.setRelease(memory, TAKEN_OFFSET, ++position);
        return imm;
    }

    /** Target: false once the writer's position was impossible; nothing is taken from then on. */
    public boolean isSound() {
        return sound;
    }

    /** Target: from now on the writer has to wake it; check once more before sleeping. */
    public void park() {
        INT.setVolatile(memory, PARKED_OFFSET, PARKED);
        // Against the fence in claimWake: either the look that follows sees the push, or the writer sees the flag.
        VarHandle.fullFence();
    }

    public void unpark() {
        INT.setVolatile(memory, PARKED_OFFSET, AWAKE);
    }

    private static long slot(long position) {
        return SLOTS_OFFSET + (position & (CAPACITY - 1)) * Integer.BYTES;
    }
}
