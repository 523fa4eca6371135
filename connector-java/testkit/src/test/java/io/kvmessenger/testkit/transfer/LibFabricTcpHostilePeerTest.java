package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** What {@link HostileRecordsContractTest} says, and what a peer may say to libfabric's end of the control socket. */
@ExtendWith(NeedsLibFabric.class)
final class LibFabricTcpHostilePeerTest extends HostileRecordsContractTest {
    /** What libfabric's tcp speaks, {@code FI_PROTO_XNET}. */
    private static final int XNET = 25;

    private static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;
    /** A {@code struct sockaddr_in}: of this host, at a port where nothing is. */
    private static final byte[] NOWHERE = {2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};

    /** As many as a peer may open, and more. */
    private static final int ATTACHMENTS = 33;

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return InstalledFabric.byTcp(super.options());
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
