package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.ForwardingLibC;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.transfer.spi.KeyProof;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.random.RandomGenerator;

/**
 * Seals data read and written on tcp sockets, transparently to callers of the C library; calls on other descriptors are
 * forwarded. A socket is sealed from its valid hello until it is closed.
 *
 * <p>The keys of both directions are derived from a nonce of each side, so neither side can cause a key to be used
 * again by repeating its own: not the records of the writer, and not those of the target, such as its progress.
 *
 * <p>Sealed sockets belong to the worker; other calls are as thread-safe as those of the library below.
 */
public final class SealingLibC extends ForwardingLibC implements Seals {
    /** Sent in front of the first record to peers whose {@link Hello} carries no nonce. */
    static final int NONCE_LENGTH_BYTES = Hello.NONCE_LENGTH_BYTES;

    private static final byte TO_TARGET = 1;
    private static final byte TO_WRITER = 2;

    private final LibC libC;
    private final RandomGenerator random;
    private final SealedStream.Scratch scratch = new SealedStream.Scratch();
    /** Indexed by descriptor. */
    private SealedStream[] streams = new SealedStream[64];

    /** @param random source of nonces; must be unpredictable */
    public SealingLibC(LibC libC, RandomGenerator random) {
        super(libC);
        this.libC = libC;
        this.random = random;
    }

    @Override
    public boolean sealing() {
        return true;
    }

    @Override
    public byte[] freshNonce() {
        byte[] nonce = new byte[NONCE_LENGTH_BYTES];
        random.nextBytes(nonce);
        return nonce;
    }

    @Override
    public void onDialled(int fd, Challenge asked, Hello given, byte[] key) {
        SealedStream stream = new SealedStream(libC, fd, scratch);
        boolean inHello = given.nonce().length > 0;
        byte[] nonce = inHello ? given.nonce() : freshNonce();
        stream.sendWith(keyOf(TO_TARGET, asked, given, nonce, key), inHello ? new byte[0] : nonce);
        stream.receiveWith(keyOf(TO_WRITER, asked, given, given.nonce(), key));
        put(fd, stream);
    }

    @Override
    public void onAccepted(int fd, Challenge asked, Hello given, byte[] key) {
        SealedStream stream = new SealedStream(libC, fd, scratch);
        stream.sendWith(keyOf(TO_WRITER, asked, given, given.nonce(), key), new byte[0]);
        if (given.nonce().length > 0) {
            stream.receiveWith(keyOf(TO_TARGET, asked, given, given.nonce(), key));
        } else {
            stream.receiveAfter(NONCE_LENGTH_BYTES, nonce -> keyOf(TO_TARGET, asked, given, nonce, key));
        }
        put(fd, stream);
    }

    private static byte[] keyOf(byte direction, Challenge asked, Hello given, byte[] nonce, byte[] key) {
        ByteBuffer statement = ByteBuffer.allocate(1 + Challenge.NONCE_LENGTH_BYTES + 2 * Integer.BYTES + nonce.length);
        statement.put(direction).put(asked.nonce()).putInt(given.role()).putInt(given.count());
        return KeyProof.sealKey(key, statement.put(nonce).array());
    }

    private void put(int fd, SealedStream stream) {
        if (fd >= streams.length) {
            streams = Arrays.copyOf(streams, Math.max(fd + 1, 2 * streams.length));
        }
        streams[fd] = stream;
    }

    /** Null if the descriptor is not sealed. */
    private SealedStream of(int fd) {
        SealedStream[] all = streams;
        return fd >= 0 && fd < all.length ? all[fd] : null;
    }

    @Override
    public boolean holdsBytes(int fd) {
        SealedStream stream = of(fd);
        return stream != null && stream.holdsBytes();
    }

    @Override
    public long read(int fd, MemorySegment buffer, long lengthBytes) {
        SealedStream stream = of(fd);
        return stream == null
                ? super.read(fd, buffer, lengthBytes)
                : stream.read(buffer.address(), Math.min(lengthBytes, buffer.byteSize()));
    }

    @Override
    public long readv(int fd, MemorySegment vectors, int vectorCount) {
        SealedStream stream = of(fd);
        return stream == null ? super.readv(fd, vectors, vectorCount) : stream.readv(vectors, vectorCount);
    }

    /** If sealed: supports one vector and no control data. */
    @Override
    public long recvmsg(int socket, MemorySegment message, int flags) {
        SealedStream stream = of(socket);
        return stream == null ? super.recvmsg(socket, message, flags) : stream.readv(vectors(message), count(message));
    }

    @Override
    public long sendmsg(int socket, MemorySegment message, int flags) {
        SealedStream stream = of(socket);
        return stream == null ? super.sendmsg(socket, message, flags) : stream.send(vectors(message), count(message));
    }

    @Override
    public int close(int fd) {
        SealedStream stream = of(fd);
        if (stream != null) {
            streams[fd] = null;
            stream.close();
        }
        return super.close(fd);
    }

    private static MemorySegment vectors(MemorySegment message) {
        return ForeignMemory.at(
                message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTORS_OFFSET), count(message) * IoVector.SIZE_BYTES);
    }

    private static int count(MemorySegment message) {
        return (int) message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTOR_COUNT_OFFSET);
    }
}
