package io.kvmessenger.transfer.socket;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.transfer.Admission;
import java.lang.foreign.MemorySegment;
import java.nio.ByteOrder;

/**
 * The first bytes on every socket: magic, version, what the socket is for, and the admission key. A value.
 *
 * @param role {@link #CONTROL}, or the number of a data path, from 1
 * @param dataPathCount how many data paths the peer is going to open
 */
public record Hello(int version, int role, int dataPathCount, byte[] key) {
    public static final long MAGIC = 0x3148_5450_534D_564BL; // "KVMSPTH1" in the order of the wire
    public static final int VERSION = 1;
    public static final int CONTROL = 0;
    public static final int LENGTH_BYTES = 48;

    private static final java.lang.foreign.ValueLayout.OfLong LONG =
            JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final java.lang.foreign.ValueLayout.OfInt INT =
            JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final int VERSION_OFFSET = 8;
    private static final int ROLE_OFFSET = 12;
    private static final int KEY_OFFSET = 16;
    private static final int DATA_PATH_COUNT_OFFSET = 32;

    public static Hello of(int role, int dataPathCount, byte[] key) {
        return new Hello(VERSION, role, dataPathCount, key);
    }

    public void encode(MemorySegment out) {
        out.asSlice(0, LENGTH_BYTES).fill((byte) 0);
        out.set(LONG, 0, MAGIC);
        out.set(INT, VERSION_OFFSET, version);
        out.set(INT, ROLE_OFFSET, role);
        MemorySegment.copy(key, 0, out, JAVA_BYTE, KEY_OFFSET, Admission.KEY_LENGTH_BYTES);
        out.set(INT, DATA_PATH_COUNT_OFFSET, dataPathCount);
    }

    /** What the bytes say, or null when they are not of this protocol. Any version is parsed. */
    public static Hello parse(MemorySegment in) {
        if (in.get(LONG, 0) != MAGIC) {
            return null;
        }
        byte[] key = in.asSlice(KEY_OFFSET, Admission.KEY_LENGTH_BYTES).toArray(JAVA_BYTE);
        return new Hello(
                in.get(INT, VERSION_OFFSET), in.get(INT, ROLE_OFFSET), in.get(INT, DATA_PATH_COUNT_OFFSET), key);
    }

    /** Words for a peer of another version. */
    public static String versionFault(Hello hello) {
        return "the peer speaks version " + hello.version() + ", this engine version " + VERSION;
    }
}
