package io.kvmessenger.transfer.tcp;

import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;

/**
 * What the two ends of a link say about one data socket: its role, its number among the sockets of that role, and how many
 * frames the target has taken from it. Reads and writes one segment; allocates nothing.
 */
final class PathRecord {
    static final int LENGTH_BYTES = 16;

    private static final ValueLayout.OfInt INT = JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfLong LONG = JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final int ROLE_OFFSET = 0;
    private static final int SERIAL_OFFSET = 4;
    private static final int FRAMES_OFFSET = 8;

    private PathRecord() {}

    static MemorySegment encode(MemorySegment record, int role, int serial, long frames) {
        record.set(INT, ROLE_OFFSET, role);
        record.set(INT, SERIAL_OFFSET, serial);
        record.set(LONG, FRAMES_OFFSET, frames);
        return record;
    }

    /** Whether the record is one, of a link with so many roles. */
    static boolean isSound(MemorySegment record, int roleCount) {
        return record.byteSize() == LENGTH_BYTES && role(record) >= 1 && role(record) <= roleCount;
    }

    static int role(MemorySegment record) {
        return record.get(INT, ROLE_OFFSET);
    }

    static int serial(MemorySegment record) {
        return record.get(INT, SERIAL_OFFSET);
    }

    static long frames(MemorySegment record) {
        return record.get(LONG, FRAMES_OFFSET);
    }
}
