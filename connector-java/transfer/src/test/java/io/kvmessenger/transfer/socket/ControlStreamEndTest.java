package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.io.ByteArrayOutputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The last record of a stream reaches a peer that reads late, however much waits before it. */
final class ControlStreamEndTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int ORDINARY = 7;
    private static final int NOTHING_YET = -11; // EAGAIN

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(LIB_C, () -> 0);
    private final String name =
            "kvmessenger-end-" + ProcessHandle.current().pid() + "-" + System.identityHashCode(this);
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int peerFd = SOCKETS.connectAbstract(name);
    private final ControlStream stream = new ControlStream(
            loop,
            LIB_C.accept4(
                    listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC),
            new DeafReader(),
            0);
    private final MemorySegment buffer = arena.allocate(1 << 16);
    private final ByteArrayOutputStream received = new ByteArrayOutputStream();
    private int sentCount;

    @AfterEach
    void close() {
        stream.close();
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
        arena.close();
    }

    /** By how many records wait, -1 = as many as it takes, and how long the last one's text is. */
    @ParameterizedTest
    @CsvSource({"0, 10", "1, 10", "100, 10", "-1, 0", "-1, 10", "-1, 1024", "-1, 5000"})
    void shouldSendItsLastRecordWhateverWaits(int count, int detailLength) {
        for (long seed = 1; seed <= 5; seed++) {
            fill(count, new Random(seed));
        }
        Notice last = new Notice(TransferFault.WRITE_REFUSED, "x".repeat(detailLength));
        int before = sentCount;
        stream.finish(ControlRecord.NOTICE, last.encode());
        assertThat(stream.offer(ORDINARY, MemorySegment.NULL))
                .as("after the last")
                .isFalse();
        readToTheEnd();
        List<byte[]> records = records();
        assertThat(records).hasSize(before + 1);
        Notice read = Notice.parse(MemorySegment.ofArray(records.getLast()));
        assertThat(read.fault()).isEqualTo(last.fault());
        assertThat(read.detail()).hasSize(Math.min(detailLength, 1024));
    }

    /** Offers records of drawn lengths until one is refused. */
    private void fill(int count, Random random) {
        for (int i = 0; i != count; i++) {
            int length = random.nextInt(4) == 0
                    ? TransferEngine.MESSAGE_MAX_BYTES - random.nextInt(64)
                    : random.nextInt(2000);
            if (!stream.offer(ORDINARY, arena.allocate(length))) {
                return;
            }
            sentCount++;
        }
    }

    private void readToTheEnd() {
        for (long read = 1; read != 0; ) {
            loop.poll(0);
            read = LIB_C.read(peerFd, buffer, buffer.byteSize());
            assertThat(read).isGreaterThanOrEqualTo(NOTHING_YET);
            if (read > 0) {
                byte[] bytes = buffer.asSlice(0, read).toArray(ValueLayout.JAVA_BYTE);
                received.writeBytes(bytes);
            }
        }
    }

    private List<byte[]> records() {
        ByteBuffer bytes = ByteBuffer.wrap(received.toByteArray()).order(ByteOrder.LITTLE_ENDIAN);
        List<byte[]> records = new ArrayList<>();
        while (bytes.hasRemaining()) {
            bytes.getInt();
            byte[] record = new byte[bytes.getInt()];
            bytes.get(record);
            records.add(record);
        }
        return records;
    }
}
