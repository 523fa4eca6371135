package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What {@link HostilePeerContractTest} says, and what a peer may say to libfabric's end of the control socket. */
final class LibFabricTcpHostilePeerTest extends HostilePeerContractTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int RECORD_PREFIX_BYTES = 8;
    private static final int READ_BYTES = 4096;
    /** What libfabric's tcp speaks, {@code FI_PROTO_XNET}. */
    private static final int XNET = 25;

    private static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;
    /** A {@code struct sockaddr_in}: of this host, at a port where nothing is. */
    private static final byte[] NOWHERE = {2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};

    /** As many as a peer may open, and more. */
    private static final int ATTACHMENTS = 33;

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final Random random = new Random(seed);

    @BeforeAll
    static void look() {
        InstalledFabric.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return InstalledFabric.byTcp(super.options());
    }

    @Override
    protected int connectSocket(String location) {
        InetSocketAddress address = SocketLocation.parse(location, false);
        return SOCKETS.connectInet(address.getAddress(), address.getPort());
    }

    /** A control socket of its own that the engine has accepted. */
    private int accepted(Admission admission) {
        int control = socket();
        target.await("the socket", () -> SOCKETS.pendingError(control) == 0);
        send(control, hello(control, Hello.CONTROL, admission.key()));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(RECORD_PREFIX_BYTES);
            target.await("a record", () -> LIB_C.read(control, bytes, RECORD_PREFIX_BYTES) == RECORD_PREFIX_BYTES);
        }
        return control;
    }

    private static byte[] attach(int number, byte[] wish) {
        byte[] name = TransferOptions.LIBFABRIC.getBytes(StandardCharsets.UTF_8);
        return record(
                ControlRecord.type(ControlRecord.ATTACH, number),
                ByteBuffer.allocate(1 + name.length + wish.length)
                        .put((byte) name.length)
                        .put(name)
                        .put(wish)
                        .array());
    }

    private static byte[] record(int type, byte[] payload) {
        return ByteBuffer.allocate(RECORD_PREFIX_BYTES + payload.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(type)
                .putInt(payload.length)
                .put(payload)
                .array();
    }

    /** @param address the provider's own, which may be anything */
    private static byte[] name(int protocol, int format, byte[] address) {
        return ByteBuffer.allocate(8 + address.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(protocol)
                .putInt(format)
                .put(address)
                .array();
    }

    private byte[] noise(int lengthBytes) {
        byte[] noise = new byte[lengthBytes];
        random.nextBytes(noise);
        return noise;
    }

    private static boolean isEnded(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            long count = LIB_C.read(fd, arena.allocate(READ_BYTES), READ_BYTES);
            return count == 0 || count == -Errno.ECONNRESET;
        }
    }

    /** None, some that are no name, and one of another provider: each is refused by itself. */
    @Test
    void shouldRefuseEndpointsThatAreNone() {
        Admission admission = target.engine().admit("writer");
        int control = accepted(admission);
        byte[][] wishes = {{}, noise(3), noise(8), noise(8 + 257), name(0x7FFF_0001, 2, noise(16)), noise(24)};
        for (int i = 0; i < wishes.length; i++) {
            send(control, attach(i, wishes[i]));
            awaitRejected(1 + i);
        }
        assertThat(target.closedAdmissions).as("it never was ready").isEmpty();
        shouldStillAdmitAPeer();
    }

    /** It opens endpoints to places that it makes up, as many as it may, and then is refused; all of them are given back. */
    @Test
    void shouldOpenNoMoreEndpointsThanAPeerMayHaveAndGiveThemBack() {
        shouldStillAdmitAPeer();
        Admission admission = target.engine().admit("writer");
        int control = accepted(admission);
        for (int i = 0; i < ATTACHMENTS; i++) {
            send(control, attach(i, name(XNET, FabricApi.FI_SOCKADDR_IN, NOWHERE)));
        }
        target.await("the end of its socket", () -> isEnded(control));
        shouldStillAdmitAPeer();
    }

    /** Regions are asked for by peers whose path is open. */
    @Test
    void shouldEndAPeerThatSpeaksOutOfTurn() {
        Admission admission = target.engine().admit("writer");
        int control = accepted(admission);
        send(control, attach(0, name(XNET, FabricApi.FI_SOCKADDR_IN, NOWHERE)));
        send(control, record(ControlRecord.type(REGION_WANTED, 0), noise(32)));
        awaitRejected(1);
        target.await("the end of its socket", () -> isEnded(control));
        shouldStillAdmitAPeer();
    }
}
