package io.kvmessenger.testkit.stream;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.PeerChannel;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;

/**
 * What precedes the pages of one write on the stream, in the native byte order of both ends; and the kinds of records
 * on the control socket. Not thread-safe.
 */
final class StreamFrame {
    /** Target: the stream may be dialled. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;
    /** Target: the stream is there. */
    static final int READY = PeerChannel.FIRST_KIND + 1;
    /** Target: the number of frames taken, as a long. */
    static final int TAKEN = PeerChannel.FIRST_KIND + 2;

    static final int PAGES_MAX = 64;
    static final long LENGTH_BYTES = 24 + PAGES_MAX * (long) Long.BYTES;

    private final MemorySegment bytes;

    /** @param bytes {@link #LENGTH_BYTES} long */
    StreamFrame(MemorySegment bytes) {
        this.bytes = bytes;
    }

    void set(WriteBatch batch) {
        bytes.set(JAVA_INT, 0, batch.pageCount());
        bytes.set(JAVA_INT, 4, batch.regionId());
        bytes.set(JAVA_INT, 8, Imm.withWeight(batch.window(), (int) batch.weight()));
        bytes.set(JAVA_LONG, 16, batch.pageBytes());
        for (int i = 0; i < batch.pageCount(); i++) {
            bytes.setAtIndex(JAVA_LONG, 3 + i, batch.targetOffsetBytes(i));
        }
    }

    boolean isSound() {
        boolean isPaged = pageCount() > 0 && pageCount() <= PAGES_MAX && pageBytes() > 0;
        return Imm.weight(imm()) > 0 && (isPaged || pageCount() == 0);
    }

    int pageCount() {
        return bytes.get(JAVA_INT, 0);
    }

    int regionId() {
        return bytes.get(JAVA_INT, 4);
    }

    int imm() {
        return bytes.get(JAVA_INT, 8);
    }

    long pageBytes() {
        return bytes.get(JAVA_LONG, 16);
    }

    /** Of all pages. */
    long pagesBytes() {
        return pageCount() * pageBytes();
    }

    long targetOffset(int i) {
        return bytes.getAtIndex(JAVA_LONG, 3 + i);
    }

    MemorySegment bytes() {
        return bytes;
    }
}
