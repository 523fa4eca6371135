package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What {@link HostileRecordsContractTest} says, and what a peer may say to the verbs' end of the control socket. */
final class VerbsHostilePeerTest extends HostileRecordsContractTest {
    private static final int PATH_WANTED = PeerChannel.FIRST_KIND + 1;
    private static final int REGION_WANTED = PeerChannel.FIRST_KIND + 5;
    private static final int FAILED = PeerChannel.FIRST_KIND + 7;
    private static final int SETTLED = PeerChannel.FIRST_KIND + 8;
    private static final int PATH_CLOSED = PeerChannel.FIRST_KIND + 9;

    private static final int QUEUE_PAIR_BYTES = 36;
    private static final int ETHERNET_OFFSET = 16;
    /** Of one path at most for each. */
    private static final int NETWORKS = 8;

    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected TransferOptions options() {
        return RdmaDevices.by(super.options(), "writer");
    }

    private static byte[] ints(int... values) {
        ByteBuffer out = ByteBuffer.allocate(values.length * Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        for (int value : values) {
            out.putInt(value);
        }
        return out.array();
    }

    private static byte[] about(int kind, int network, int serial, byte[] body) {
        byte[] name = ints(network, serial);
        return record(
                ControlRecord.type(kind, 0),
                ByteBuffer.allocate(name.length + body.length)
                        .put(name)
                        .put(body)
                        .array());
    }

    /** A queue pair of nowhere, at a port of the same kind. */
    private byte[] madeUp() {
        byte[] name = noise(QUEUE_PAIR_BYTES);
        System.arraycopy(ints(1), 0, name, ETHERNET_OFFSET, Integer.BYTES);
        return name;
    }

    private int attached() {
        int control = accepted(target.engine().admit("hostile"));
        send(control, attach(0, ints(1)));
        return control;
    }

    /** The records, each of which ends it at the latest, while another peer's path is open and stays so. */
    private void shouldEndOnlyItself(byte[]... records) {
        try (DrivenEngine honest = new DrivenEngine(options(), "honest", 1 << 20)) {
            Admission admission = target.engine().admit("honest");
            Peer peer = honest.engine().connect(target.engine().address(), admission.key(), "target");
            honest.await("the honest peer", () -> honest.ready.contains(peer));
            int control = attached();
            for (byte[] record : records) {
                send(control, record);
            }
            awaitRejected(1);
            target.await("the end of its socket", () -> isEnded(control));
            honest.poll();
            assertThat(honest.lost).isEmpty();
            assertThat(target.closedAdmissions).doesNotContainKey(admission.id());
        }
        shouldStillAdmitAPeer();
    }

    @Test
    void shouldRefuseAWishThatNamesNoNumberOfDevices() {
        int control = accepted(target.engine().admit("hostile"));
        byte[][] wishes = {{}, ints(0), ints(-1), noise(3), noise(64)};
        for (int i = 0; i < wishes.length; i++) {
            send(control, attach(i, wishes[i]));
            awaitRejected(1 + i);
        }
        shouldStillAdmitAPeer();
    }

    @ParameterizedTest
    @ValueSource(ints = {PATH_WANTED, REGION_WANTED, FAILED, SETTLED, PATH_CLOSED, PATH_CLOSED + 20})
    void shouldEndAPeerWhoseRecordsAreNoise(int kind) {
        shouldEndOnlyItself(record(ControlRecord.type(kind, 0), noise(5)));
    }

    /** Of a network that cannot be, and of paths that it has not asked for, whatever they are called. */
    @ParameterizedTest
    @ValueSource(ints = {REGION_WANTED, FAILED, SETTLED})
    void shouldEndAPeerThatSpeaksOfAPathThatIsNot(int kind) {
        shouldEndOnlyItself(about(kind, NETWORKS, 0, noise(32)));
        shouldEndOnlyItself(about(kind, 0, 77, noise(32)));
    }

    /** A queue pair that does not exist at an address that nothing has: its path never opens, and is not taken twice. */
    @Test
    void shouldEndAPeerThatWantsAPathTwice() {
        byte[] madeUp = madeUp();
        shouldEndOnlyItself(about(PATH_WANTED, 0, 0, madeUp), about(PATH_WANTED, 0, 0, madeUp));
    }

    @Test
    void shouldEndAPeerThatLosesAPathThatNeverOpened() {
        shouldEndOnlyItself(about(PATH_WANTED, 3, 0, madeUp()), about(FAILED, 3, 0, new byte[0]));
    }

    /** None of them opens. */
    @Test
    void shouldServeOthersWhileAPeerWantsPathsToNowhere() {
        int control = attached();
        for (int network = 0; network < NETWORKS; network++) {
            send(control, about(PATH_WANTED, network, 0, madeUp()));
        }
        shouldStillAdmitAPeer();
        assertThat(isEnded(control)).isFalse();
    }
}
