package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.zip.CRC32C;

/**
 * A digest over memory that is computed in parts, so that it delays no heartbeat: the SHA-256 of its length and of the
 * CRC32C of each piece. It finds bytes that were damaged or are missing; it proves nothing against one that forges.
 *
 * <p>One thread. The memory must not change before {@link #value}.
 */
final class ContentDigest {
    static final int LENGTH_BYTES = 32;

    private final MemorySegment bytes;
    private final long pieceBytes;
    private final MessageDigest pieces;
    private long atBytes;

    ContentDigest(MemorySegment bytes, long pieceBytes) {
        this.bytes = bytes;
        this.pieceBytes = pieceBytes;
        try {
            pieces = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java has SHA-256", e);
        }
        pieces.update(number(bytes.byteSize()));
    }

    /** Goes on with at most so many pieces; returns how many it computed, 0 once it has finished. */
    int advance(int pieceCountMax) {
        int done = 0;
        while (done < pieceCountMax && !finished()) {
            long lengthBytes = Math.min(pieceBytes, bytes.byteSize() - atBytes);
            CRC32C sum = new CRC32C();
            sum.update(bytes.asSlice(atBytes, lengthBytes).asByteBuffer());
            pieces.update(number(sum.getValue()));
            atBytes += lengthBytes;
            done++;
        }
        return done;
    }

    boolean finished() {
        return atBytes == bytes.byteSize();
    }

    /** The digest; called once, after it has finished. */
    ByteString value() {
        return ByteString.copyFrom(pieces.digest());
    }

    private static ByteBuffer number(long value) {
        return ByteBuffer.allocate(Long.BYTES).putLong(value).flip();
    }
}
