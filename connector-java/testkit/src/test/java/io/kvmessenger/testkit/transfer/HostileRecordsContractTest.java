package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.socket.SocketLocation;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Random;

/** What {@link HostilePeerContractTest} says, of transports whose two ends speak by the control socket: a peer may say anything there. */
abstract class HostileRecordsContractTest extends HostilePeerContractTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int RECORD_PREFIX_BYTES = 8;
    private static final int READ_BYTES = 4096;

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final Random random = new Random(seed);

    @Override
    protected int connectSocket(String location) {
        InetSocketAddress address = SocketLocation.parse(location, false);
        return SOCKETS.connectInet(address.getAddress(), address.getPort());
    }

    /** A control socket of its own that the engine has accepted. */
    final int accepted(Admission admission) {
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        int control = socket();
        target.await("the socket", () -> SOCKETS.pendingError(control) == 0);
        send(control, hello(control, Hello.CONTROL, admission.key()));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(RECORD_PREFIX_BYTES);
            target.await("a record", () -> LIB_C.read(control, bytes, RECORD_PREFIX_BYTES) == RECORD_PREFIX_BYTES);
        }
        return control;
    }

    /** The wish to write by the transport. */
    final byte[] attach(int number, byte[] wish) {
        byte[] name = transport().getBytes(StandardCharsets.UTF_8);
        return record(
                ControlRecord.type(ControlRecord.ATTACH, number),
                ByteBuffer.allocate(1 + name.length + wish.length)
                        .put((byte) name.length)
                        .put(name)
                        .put(wish)
                        .array());
    }

    static byte[] record(int type, byte[] payload) {
        return ByteBuffer.allocate(RECORD_PREFIX_BYTES + payload.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(type)
                .putInt(payload.length)
                .put(payload)
                .array();
    }

    final byte[] noise(int lengthBytes) {
        byte[] noise = new byte[lengthBytes];
        random.nextBytes(noise);
        return noise;
    }

    /** Whether the engine has closed the socket; what it said before is read and left alone. */
    static boolean isEnded(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            long count = LIB_C.read(fd, arena.allocate(READ_BYTES), READ_BYTES);
            return count == 0 || count == -Errno.ECONNRESET;
        }
    }
}
