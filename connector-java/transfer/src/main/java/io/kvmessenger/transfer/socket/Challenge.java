package io.kvmessenger.transfer.socket;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import java.lang.foreign.MemorySegment;
import java.util.random.RandomGenerator;

/**
 * The first bytes on every socket, sent by the side that listens: magic, versions, and a nonce that the other side's
 * {@link Hello} has to answer. Each socket gets its own nonce, so that no answer can be replayed. A value.
 *
 * @param version the oldest that is spoken: engines from before version negotiation require it to be their own
 * @param newestVersion the newest that is spoken
 */
public record Challenge(int version, int newestVersion, byte[] nonce) {
    public static final long MAGIC = 0x314C_4843_534D_564BL; // "KVMSCHL1" in wire order
    public static final int NONCE_LENGTH_BYTES = 32;
    public static final int LENGTH_BYTES = 48;

    private static final int VERSION_OFFSET = 8;
    /** Zero if the engine speaks a single version. */
    private static final int NEWEST_VERSION_OFFSET = 12;

    private static final int NONCE_OFFSET = 16;

    public static Challenge fresh(RandomGenerator random) {
        byte[] nonce = new byte[NONCE_LENGTH_BYTES];
        random.nextBytes(nonce);
        return new Challenge(Hello.OLDEST_VERSION, Hello.VERSION, nonce);
    }

    public void encode(MemorySegment out) {
        out.asSlice(0, LENGTH_BYTES).fill((byte) 0);
        out.set(LONG, 0, MAGIC);
        out.set(INT, VERSION_OFFSET, version);
        out.set(INT, NEWEST_VERSION_OFFSET, newestVersion);
        MemorySegment.copy(nonce, 0, out, JAVA_BYTE, NONCE_OFFSET, NONCE_LENGTH_BYTES);
    }

    /** Decodes a challenge of any version; null when it is not of this protocol. */
    public static Challenge parse(MemorySegment in) {
        if (in.get(LONG, 0) != MAGIC) {
            return null;
        }
        int oldest = in.get(INT, VERSION_OFFSET);
        return new Challenge(
                oldest,
                Math.max(oldest, in.get(INT, NEWEST_VERSION_OFFSET)),
                in.asSlice(NONCE_OFFSET, NONCE_LENGTH_BYTES).toArray(JAVA_BYTE));
    }
}
