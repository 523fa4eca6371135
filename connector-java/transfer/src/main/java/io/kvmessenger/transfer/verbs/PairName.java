package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;

/**
 * What one side tells the other of its queue pair. A value.
 *
 * @param number the queue pair's
 * @param firstPacket the number that its first packet has
 * @param mtu the longest packet of its port, as verbs encode it
 * @param lid the port's on InfiniBand
 * @param ethernet whether the port is one of Ethernet, so that {@code gid} is what it is reached by
 * @param gid the port's address
 */
record PairName(int number, int firstPacket, int mtu, int lid, boolean ethernet, byte[] gid) {
    static final int GID_BYTES = 16;
    static final int LENGTH_BYTES = 5 * Integer.BYTES + GID_BYTES;

    private static final int GID_OFFSET = 5 * Integer.BYTES;
    private static final ValueLayout.OfInt INT = JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new byte[LENGTH_BYTES]);
        out.set(INT, 0, number);
        out.set(INT, 4, firstPacket);
        out.set(INT, 8, mtu);
        out.set(INT, 12, lid);
        out.set(INT, 16, ethernet ? 1 : 0);
        MemorySegment.copy(gid, 0, out, JAVA_BYTE, GID_OFFSET, GID_BYTES);
        return out;
    }

    /** What the bytes say, or null when they say nothing. */
    static PairName parse(MemorySegment in) {
        return in.byteSize() != LENGTH_BYTES
                ? null
                : new PairName(
                        in.get(INT, 0),
                        in.get(INT, 4),
                        in.get(INT, 8),
                        in.get(INT, 12),
                        in.get(INT, 16) != 0,
                        in.asSlice(GID_OFFSET, GID_BYTES).toArray(JAVA_BYTE));
    }
}
