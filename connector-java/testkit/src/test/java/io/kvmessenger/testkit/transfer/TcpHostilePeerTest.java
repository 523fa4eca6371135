package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.socket.SocketLocation;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.util.Random;
import org.junit.jupiter.api.Test;

final class TcpHostilePeerTest extends HostilePeerContractTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int RECORD_PREFIX_BYTES = 8;

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
        int data = socket();
        awaitConnected(data);
        send(data, hello(data, 1, admission.key()));
        awaitRecord(control);
        send(data, garbage);
        target.await("the end", () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(target.closedAdmissions.get(admission.id())).contains("mark");
        awaitRejected(1);
        shouldStillAdmitAPeer();
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
