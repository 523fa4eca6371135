package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Test;

class TcpHostilePeerTest extends HostilePeerContractTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int RECORD_PREFIX_BYTES = 8;
    private static final int READ_BYTES = 4096;

    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected int connectSocket(String location) {
        InetSocketAddress address = SocketLocation.parse(location, false);
        return SOCKETS.connectInet(address.getAddress(), address.getPort());
    }

    @Test
    void shouldEndTheAdmissionThatSendsGarbageForFrames() {
        long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        byte[] garbage = new byte[4096];
        new Random(seed).nextBytes(garbage);
        Admission admission = target.engine().admit("writer");
        int control = socket();
        awaitConnected(control);
        send(control, hello(control, Hello.CONTROL, admission.key()));
        awaitRecord(control);
        send(control, attach(1));
        awaitRecord(control);
        int data = socket();
        awaitConnected(data);
        send(data, hello(data, Hello.role(0, 1), admission.key()));
        awaitRecord(control);
        send(data, garbage);
        target.await("the end", () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(target.closedAdmissions.get(admission.id())).contains("mark");
        awaitRejected(1);
        shouldStillAdmitAPeer();
    }

    /** The peer may say this as often as it likes, and about what it likes. */
    @Test
    void shouldRefusePathsThatItDoesNotHaveAndEndAPeerThatAsksForNone() {
        Admission admission = target.engine().admit("writer");
        int control = socket();
        awaitConnected(control);
        send(control, hello(control, Hello.CONTROL, admission.key()));
        awaitRecord(control);
        send(control, attach(TcpTransport.STREAMS_PER_PEER_MAX + 1));
        awaitRejected(1);
        send(control, new byte[] {ControlRecord.ATTACH, 1, 0, 0, 0, 0, 0, 0});
        awaitRejected(2);
        send(control, new byte[] {ControlRecord.ATTACH, 9, 0, 0, 0, 0, 0, 0});
        awaitRejected(3);
        target.await("the end of its socket", () -> isEnded(control));
        assertThat(target.closedAdmissions).as("it never was ready").isEmpty();
        shouldStillAdmitAPeer();
    }

    /** It was asked for nothing, so there is no read that it could end; nor may it ask, which is for its target alone. */
    @Test
    void shouldEndAPeerThatAnswersOrAsksForReadsOutOfTurn() {
        for (int kind : new int[] {ControlRecord.READ_ENDED, ControlRecord.READ}) {
            Admission admission = target.engine().admit("writer");
            int control = socket();
            awaitConnected(control);
            send(control, hello(control, Hello.CONTROL, admission.key()));
            awaitRecord(control);
            ByteBuffer record = ByteBuffer.allocate(RECORD_PREFIX_BYTES + 12).order(ByteOrder.LITTLE_ENDIAN);
            send(control, record.putInt(kind).putInt(12).array());
            target.await("the end of its socket", () -> isEnded(control));
            shouldStillAdmitAPeer();
        }
        awaitRejected(2);
    }

    private static boolean isEnded(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            long count = LIB_C.read(fd, arena.allocate(READ_BYTES), READ_BYTES);
            return count == 0 || count == -Errno.ECONNRESET;
        }
    }

    /** A record of the first attachment. */
    private static byte[] attach(int pathCount) {
        byte[] name = TransferOptions.TCP.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(RECORD_PREFIX_BYTES + 1 + name.length + Integer.BYTES)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(ControlRecord.ATTACH)
                .putInt(1 + name.length + Integer.BYTES)
                .put((byte) name.length)
                .put(name)
                .putInt(pathCount)
                .array();
    }

    private void awaitConnected(int fd) {
        target.await("the socket", () -> SOCKETS.pendingError(fd) == 0);
    }

    /** Reads one empty record. */
    private void awaitRecord(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(RECORD_PREFIX_BYTES);
            target.await("a record", () -> LIB_C.read(fd, bytes, RECORD_PREFIX_BYTES) == RECORD_PREFIX_BYTES);
        }
    }
}
