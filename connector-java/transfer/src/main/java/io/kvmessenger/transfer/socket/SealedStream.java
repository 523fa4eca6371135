package io.kvmessenger.transfer.socket;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.GeneralSecurityException;
import java.util.function.UnaryOperator;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * The two directions of one sealed socket: records of a length and as many bytes, encrypted by AES-256-GCM with the
 * record's number as nonce. So no record can be read, altered, dropped, replayed or reordered unnoticed: on a violation
 * the socket counts as broken.
 *
 * <p>Worker only. It does not close the socket. It allocates per record, never per page.
 */
final class SealedStream {
    /** Length of a record's plaintext. */
    static final int RECORD_MAX_BYTES = 32 << 10;

    static final int PREFIX_BYTES = Integer.BYTES;
    static final int TAG_BYTES = 16;

    private static final int SEALED_MAX_BYTES = RECORD_MAX_BYTES + TAG_BYTES;
    private static final int NONCE_BYTES = 12;
    private static final String CIPHER = "AES/GCM/NoPadding";
    private static final ValueLayout.OfInt LENGTH = JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    /** Buffers shared by all streams of a worker, which keep nothing in them between calls. */
    static final class Scratch {
        private final byte[] plain = new byte[RECORD_MAX_BYTES];
        private final byte[] sealed = new byte[SEALED_MAX_BYTES];
        private final byte[] prefix = new byte[PREFIX_BYTES];
    }

    /** A key, and the number of records sealed or opened with it. */
    private static final class Direction {
        private final Cipher cipher;
        private final SecretKeySpec key;
        private long records;

        Direction(byte[] key) {
            try {
                cipher = Cipher.getInstance(CIPHER);
            } catch (GeneralSecurityException e) {
                throw new AssertionError("every Java runtime has " + CIPHER, e);
            }
            this.key = new SecretKeySpec(key, "AES");
        }

        /** @throws GeneralSecurityException when the input to be opened was not sealed with this key and number */
        int next(int mode, byte[] associated, byte[] in, int lengthBytes, byte[] out) throws GeneralSecurityException {
            byte[] nonce = ByteBuffer.allocate(NONCE_BYTES)
                    .putInt(0)
                    .putLong(records++)
                    .array();
            cipher.init(mode, key, new GCMParameterSpec(TAG_BYTES * Byte.SIZE, nonce));
            cipher.updateAAD(associated);
            return cipher.doFinal(in, 0, lengthBytes, out, 0);
        }
    }

    private final LibC libC;
    private final int fd;
    private final Scratch scratch;
    private final Arena arena = Arena.ofConfined();

    private Direction sending;
    private byte[] prelude;
    /** Null until something is sent: a data socket uses one direction only. */
    private MemorySegment out;

    private int outFrom;
    private int outTo;
    /** Bytes of the caller that are sealed and not yet written: they count as sent when they are. */
    private int owed;

    private Direction receiving;
    private UnaryOperator<byte[]> keyFrom;
    private int preludeBytes;
    /** Null until something is read. */
    private MemorySegment in;

    private int inTo;
    private MemorySegment opened;
    private int openedFrom;
    private int openedTo;
    private boolean broken;

    SealedStream(LibC libC, int fd, Scratch scratch) {
        this.libC = libC;
        this.fd = fd;
        this.scratch = scratch;
    }

    /** @param given is sent in clear before the first record */
    void sendWith(byte[] key, byte[] given) {
        sending = new Direction(key);
        prelude = given;
    }

    void receiveWith(byte[] key) {
        receiving = new Direction(key);
    }

    /** The key is derived from the first {@code lengthBytes} bytes received. */
    void receiveAfter(int lengthBytes, UnaryOperator<byte[]> keyFromPrelude) {
        preludeBytes = lengthBytes;
        keyFrom = keyFromPrelude;
    }

    // ---- out

    /**
     * As sendmsg(2). Bytes reported as sent are sealed and in the kernel. After {@code -EAGAIN} the next call must
     * begin with the same bytes, which are sealed already.
     */
    long send(MemorySegment vectors, int count) {
        if (owed == 0) {
            int lengthBytes = gather(vectors, count);
            if (lengthBytes == 0) {
                return 0;
            }
            seal(lengthBytes);
        }
        while (outFrom < outTo) {
            long sent = libC.send(fd, out.asSlice(outFrom), outTo - outFrom, SocketApi.MSG_NOSIGNAL);
            if (sent < 0) {
                return sent;
            }
            outFrom += (int) sent;
        }
        int done = owed;
        owed = 0;
        outFrom = 0;
        outTo = 0;
        return done;
    }

    private int gather(MemorySegment vectors, int count) {
        int taken = 0;
        for (int i = 0; i < count && taken < RECORD_MAX_BYTES; i++) {
            int part = (int) Math.min(IoVector.lengthBytes(vectors, i), RECORD_MAX_BYTES - taken);
            ForeignMemory.copy(IoVector.address(vectors, i), scratch.plain, taken, part);
            taken += part;
        }
        return taken;
    }

    private void seal(int lengthBytes) {
        if (out == null) {
            out = arena.allocate((long) prelude.length + PREFIX_BYTES + SEALED_MAX_BYTES, 8);
            MemorySegment.copy(prelude, 0, out, JAVA_BYTE, 0, prelude.length);
            outTo = prelude.length;
        }
        try {
            int sealedBytes = lengthBytes + TAG_BYTES;
            sending.next(Cipher.ENCRYPT_MODE, prefix(sealedBytes), scratch.plain, lengthBytes, scratch.sealed);
            out.set(LENGTH, outTo, sealedBytes);
            MemorySegment.copy(scratch.sealed, 0, out, JAVA_BYTE, outTo + PREFIX_BYTES, sealedBytes);
            outTo += PREFIX_BYTES + sealedBytes;
            owed = lengthBytes;
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("sealing a record failed", e);
        }
    }

    private byte[] prefix(int sealedBytes) {
        MemorySegment.ofArray(scratch.prefix).set(LENGTH, 0, sealedBytes);
        return scratch.prefix;
    }

    // ---- in

    /** As read(2). */
    long read(long address, long lengthBytes) {
        long ready = open();
        return ready <= 0 ? ready : take(address, lengthBytes);
    }

    /** As readv(2). */
    long readv(MemorySegment vectors, int count) {
        long ready = open();
        if (ready <= 0) {
            return ready;
        }
        long taken = 0;
        for (int i = 0; i < count && openedFrom < openedTo; i++) {
            taken += take(IoVector.address(vectors, i), IoVector.lengthBytes(vectors, i));
        }
        return taken;
    }

    private int take(long address, long lengthBytes) {
        int part = (int) Math.min(lengthBytes, openedTo - openedFrom);
        ForeignMemory.copy(opened.address() + openedFrom, address, part);
        openedFrom += part;
        return part;
    }

    boolean holdsBytes() {
        return openedFrom < openedTo || (!broken && receiving != null && hasRecord());
    }

    private boolean hasRecord() {
        return inTo >= PREFIX_BYTES && inTo - PREFIX_BYTES >= in.get(LENGTH, 0);
    }

    /** Ensures that there are opened bytes: returns their number, or the result that read(2) would have. */
    private long open() {
        if (in == null) {
            in = arena.allocate(PREFIX_BYTES + SEALED_MAX_BYTES, 8);
            opened = arena.allocate(RECORD_MAX_BYTES, 8);
        }
        while (openedFrom == openedTo) {
            if (broken) {
                return -Errno.EBADMSG;
            }
            if (receiving != null && inTo >= PREFIX_BYTES && !isLengthSound()) {
                broken = true;
            } else if (receiving != null && hasRecord()) {
                openRecord();
            } else {
                long count = libC.read(fd, in.asSlice(inTo), in.byteSize() - inTo);
                if (count <= 0) {
                    return count;
                }
                inTo += (int) count;
                readPrelude();
            }
        }
        return (long) openedTo - openedFrom;
    }

    private void readPrelude() {
        if (receiving == null && inTo >= preludeBytes) {
            receiving = new Direction(keyFrom.apply(in.asSlice(0, preludeBytes).toArray(JAVA_BYTE)));
            drop(preludeBytes);
        }
    }

    private boolean isLengthSound() {
        int sealedBytes = in.get(LENGTH, 0);
        return sealedBytes > TAG_BYTES && sealedBytes <= SEALED_MAX_BYTES;
    }

    private void openRecord() {
        int sealedBytes = in.get(LENGTH, 0);
        MemorySegment.copy(in, JAVA_BYTE, PREFIX_BYTES, scratch.sealed, 0, sealedBytes);
        try {
            openedTo = receiving.next(
                    Cipher.DECRYPT_MODE, prefix(sealedBytes), scratch.sealed, sealedBytes, scratch.plain);
        } catch (AEADBadTagException e) {
            broken = true;
            return;
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("opening a record failed", e);
        }
        openedFrom = 0;
        MemorySegment.copy(scratch.plain, 0, opened, JAVA_BYTE, 0, openedTo);
        drop(PREFIX_BYTES + sealedBytes);
    }

    private void drop(int lengthBytes) {
        MemorySegment.copy(in, lengthBytes, in, 0, inTo - lengthBytes);
        inTo -= lengthBytes;
    }

    void close() {
        arena.close();
    }
}
