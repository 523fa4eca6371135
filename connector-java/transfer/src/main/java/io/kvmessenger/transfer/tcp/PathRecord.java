package io.kvmessenger.transfer.tcp;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import java.lang.foreign.MemorySegment;

/**
 * Records about data sockets: for each socket its role, its serial number within that role, and how many frames the
 * target has taken from it. Reads and writes one segment; allocates nothing.
 */
final class PathRecord {
    static final int LENGTH_BYTES = 16;

    private static final int ROLE_OFFSET = 0;
    private static final int SERIAL_OFFSET = 4;
    private static final int FRAMES_OFFSET = 8;

    private PathRecord() {}

    static MemorySegment encode(MemorySegment record, int role, int serial, long frames) {
        encode(record, 0, role, serial, frames);
        return record;
    }

    /** Encodes one entry of a record about several sockets. */
    static void encode(MemorySegment record, int index, int role, int serial, long frames) {
        long at = (long) index * LENGTH_BYTES;
        record.set(INT, at + ROLE_OFFSET, role);
        record.set(INT, at + SERIAL_OFFSET, serial);
        record.set(LONG, at + FRAMES_OFFSET, frames);
    }

    /** Whether this is a valid record about one socket, of a link with {@code roleCount} roles. */
    static boolean isSound(MemorySegment record, int roleCount) {
        return record.byteSize() == LENGTH_BYTES && areSound(record, roleCount);
    }

    /** Whether this is a valid record about one or more sockets, of a link with {@code roleCount} roles. */
    static boolean areSound(MemorySegment record, int roleCount) {
        int count = count(record);
        if (count < 1 || count > roleCount || record.byteSize() != (long) count * LENGTH_BYTES) {
            return false;
        }
        for (int i = 0; i < count; i++) {
            if (role(record, i) < 1 || role(record, i) > roleCount) {
                return false;
            }
        }
        return true;
    }

    static int count(MemorySegment record) {
        return (int) (record.byteSize() / LENGTH_BYTES);
    }

    static int role(MemorySegment record, int index) {
        return record.get(INT, (long) index * LENGTH_BYTES + ROLE_OFFSET);
    }

    static int serial(MemorySegment record, int index) {
        return record.get(INT, (long) index * LENGTH_BYTES + SERIAL_OFFSET);
    }

    static long frames(MemorySegment record, int index) {
        return record.get(LONG, (long) index * LENGTH_BYTES + FRAMES_OFFSET);
    }
}
