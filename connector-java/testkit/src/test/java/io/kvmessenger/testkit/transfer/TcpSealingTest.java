package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.io.ByteArrayOutputStream;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What stands on the wire where tcp sockets are sealed, and what becomes of bytes that are changed there. */
@Timeout(900)
final class TcpSealingTest {
    private static final int MEMORY_BYTES = 1 << 20;
    /** Of the payload, as it is looked for on the wire. */
    private static final int SAMPLE_BYTES = 64;
    /** A read of so many bytes is one of payload. */
    private static final int PAYLOAD_READ_BYTES = 10_000;

    private static final TransferOptions CLEAR = TransferOptions.defaults().withTransports("tcp");
    private static final TransferOptions SEALED = CLEAR.with(TransferOptions.SEAL_TCP, true);

    /** What the kernel is given and gives. Any thread. */
    private static final class Wire {
        private final LibC real = new FfmLibC();
        private final ByteArrayOutputStream sent = new ByteArrayOutputStream();
        /** How many reads of payload are left to come before one is changed; negative: none is. */
        private int readsUntilChange = -1;

        private final LibC libC = (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(),
                new Class<?>[] {LibC.class},
                (proxy, method, arguments) -> call(method.getName(), method, arguments));

        private Object call(String name, java.lang.reflect.Method method, Object[] arguments) throws Throwable {
            Object result;
            try {
                result = method.invoke(real, arguments);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
            synchronized (this) {
                switch (name) {
                    case "send" -> noteSent((MemorySegment) arguments[1], (long) result);
                    case "sendmsg" -> noteSent((MemorySegment) arguments[1]);
                    case "read" -> onRead((MemorySegment) arguments[1], (long) result);
                    default -> {}
                }
            }
            return result;
        }

        private void noteSent(MemorySegment bytes, long count) {
            if (count > 0) {
                sent.writeBytes(bytes.asSlice(0, count).toArray(ValueLayout.JAVA_BYTE));
            }
        }

        private void noteSent(MemorySegment message) {
            long count = message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTOR_COUNT_OFFSET);
            MemorySegment vectors = ForeignMemory.at(
                    message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTORS_OFFSET), count * IoVector.SIZE_BYTES);
            for (int i = 0; i < count; i++) {
                long lengthBytes = IoVector.lengthBytes(vectors, i);
                noteSent(ForeignMemory.at(IoVector.address(vectors, i), lengthBytes), lengthBytes);
            }
        }

        private void onRead(MemorySegment bytes, long count) {
            if (count >= PAYLOAD_READ_BYTES && readsUntilChange >= 0 && readsUntilChange-- == 0) {
                long at = count / 2;
                bytes.set(ValueLayout.JAVA_BYTE, at, (byte) (bytes.get(ValueLayout.JAVA_BYTE, at) ^ 1));
            }
        }

        synchronized boolean holds(MemorySegment sample) {
            String all = sent.toString(StandardCharsets.ISO_8859_1);
            return all.contains(new String(sample.toArray(ValueLayout.JAVA_BYTE), StandardCharsets.ISO_8859_1));
        }

        synchronized void changeAfter(int reads) {
            readsUntilChange = reads;
        }

        synchronized boolean changed() {
            return readsUntilChange < 0;
        }
    }

    /** One write of the whole memory, over this wire at either end. */
    private static void transfer(TransferOptions options, Wire writers, Wire targets, int rounds) {
        try (DrivenEngine writer = new DrivenEngine(options, "writer", MEMORY_BYTES, writers.libC);
                DrivenEngine target = new DrivenEngine(options, "target", MEMORY_BYTES, targets.libC)) {
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            DrivenEngine.awaitBoth("the peer", writer, target, () -> writer.ready.contains(peer));
            WindowRanges all = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
            WindowArea area = WindowArea.of(target.region().descriptor(), all);
            for (int round = 0; round < rounds; round++) {
                long cookie = round;
                fill(writer.memory(), round);
                ImmWindow window = target.openWindow(admission, all, 1, cookie);
                RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
                writer.submit(
                        peer,
                        new SingleWrite(writer.region(), 0, target.region().descriptor(), 0, MEMORY_BYTES, remote, 1),
                        cookie);
                DrivenEngine.awaitBoth(
                        "the write",
                        target,
                        writer,
                        () -> target.filled.contains(cookie) && writer.completed.contains(cookie));
                assertThat(target.memory().mismatch(writer.memory())).isEqualTo(-1);
                window.close(true);
            }
            assertThat(writer.lost).isEmpty();
            assertThat(target.closedAdmissions).isEmpty();
            assertThat(target.engine().counters().of(TransferCounter.PATHS_LOST))
                    .isEqualTo(targets.changed() && rounds > 1 ? 1 : 0);
        }
    }

    private static void fill(MemorySegment memory, int seed) {
        byte[] bytes = new byte[MEMORY_BYTES];
        new Random(seed).nextBytes(bytes);
        MemorySegment.copy(bytes, 0, memory, ValueLayout.JAVA_BYTE, 0, bytes.length);
    }

    private static MemorySegment sample() {
        byte[] bytes = new byte[MEMORY_BYTES];
        new Random(0).nextBytes(bytes);
        return MemorySegment.ofArray(bytes).asSlice(MEMORY_BYTES / 2, SAMPLE_BYTES);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldPutThePayloadOnTheWireAsItIsOnlyInClear(boolean sealed) {
        Wire wire = new Wire();
        transfer(sealed ? SEALED : CLEAR, wire, new Wire(), 1);
        assertThat(wire.holds(sample())).isEqualTo(!sealed);
    }

    @Test
    void shouldRepairWhatAChangedByteBreaksAndLetNoneOfItLand() {
        Wire wire = new Wire();
        wire.changeAfter(40);
        transfer(SEALED, new Wire(), wire, 4);
        assertThat(wire.changed()).isTrue();
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldRefuseAPeerThatDoesNotSealAlike(boolean sealed) {
        try (DrivenEngine writer = new DrivenEngine(sealed ? SEALED : CLEAR, "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(sealed ? CLEAR : SEALED, "target", MEMORY_BYTES)) {
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
            assertThat(writer.lost.get(peer.id()).detail())
                    .contains(
                            "KV over tcp is " + (sealed ? "in clear" : "encrypted") + " at the peer",
                            "set tcp_in_clear alike on both sides");
        }
    }
}
