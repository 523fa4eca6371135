package io.kvmessenger.transfer.verbs;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import java.lang.foreign.MemorySegment;

/**
 * What one side tells the other about its queue pair. A value.
 *
 * @param number of the queue pair
 * @param firstPacket sequence number of its first packet
 * @param mtu longest packet of its port, as encoded by verbs
 * @param lid of the port, on InfiniBand
 * @param ethernet whether the port is an Ethernet port, which is reached by its {@code gid}
 * @param gid address of the port
 */
record PairName(int number, int firstPacket, int mtu, int lid, boolean ethernet, byte[] gid) {
    static final int GID_BYTES = 16;
    static final int LENGTH_BYTES = 5 * Integer.BYTES + GID_BYTES;

    private static final int GID_OFFSET = 5 * Integer.BYTES;

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

    /** Decodes a name; null when malformed. */
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
