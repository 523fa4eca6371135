package io.kvmessenger.transfer.cuda;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A writer that has closed its paths is known to be quiet, whatever its control socket takes at that moment. */
final class QuietWriterTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final int RECORDS_MAX = 4;

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(LIB_C, () -> 0);
    private final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final CudaDomain domain = new CudaDomain(loop, 1_000_000, port, new Figures(), "here", null);
    private final Wire wire = new Wire();
    private final InboundPaths reader = domain.admit(wire.readersEnd, admission, MemorySegment.NULL, 0);
    private final CudaOutboundPaths writer = new CudaOutboundPaths(
            wire.writersLibC(),
            wire.writersEnd,
            new NoEvents(),
            new Figures(),
            1_000_000,
            new PeerMemories(LIB_C, null, () -> 0),
            new BatchCopier(null, new PinnedSources(null, () -> 0), () -> 0));

    @AfterEach
    void close() {
        writer.close();
        reader.close();
        loop.close();
        arena.close();
    }

    static int[] rooms() {
        return java.util.stream.IntStream.rangeClosed(0, RECORDS_MAX).toArray();
    }

    /** The socket takes {@code room} records of the writer in all, READY and QUIET among them. */
    @ParameterizedTest
    @MethodSource("rooms")
    void shouldKnowThatAWriterIsQuietWhereItsSocketIsFull(int room) {
        wire.room = room;
        advance();
        boolean mayWrite = reader.outlivesHangUp();
        assertThat(mayWrite).isEqualTo(room > 0);
        writer.close();
        assertThat(reader.outlivesHangUp())
                .as("the end of its process is waited for")
                .isFalse();
    }

    /** What waits in the writer's buffer when the link closes is discarded. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldKnowThatAWriterIsQuietWhereItsRecordIsDiscarded(boolean discards) {
        advance();
        assertThat(reader.outlivesHangUp()).isTrue();
        wire.discards = discards;
        writer.close();
        assertThat(reader.outlivesHangUp()).isFalse();
    }

    @Test
    void shouldTakeTheRecordOfAnEarlierReleaseForIt() {
        advance();
        reader.onQuiet();
        assertThat(reader.outlivesHangUp()).isFalse();
    }

    private void advance() {
        for (int i = 0; i < 4; i++) {
            domain.poll(0);
            wire.deliver();
            writer.doWork(0);
        }
    }

    /** Both ends of a control socket within this process. */
    private final class Wire {
        final ArrayDeque<Integer> descriptors = new ArrayDeque<>();
        /** Descriptors that both ends have: the one that sent them closes them. */
        final Set<Integer> shared = new HashSet<>();

        final ArrayDeque<Runnable> toWriter = new ArrayDeque<>();
        final ReadersEnd readersEnd = new ReadersEnd();
        final WritersEnd writersEnd = new WritersEnd();
        int room = Integer.MAX_VALUE;
        boolean discards;
        PeerChannel.Reader atWriter;

        void deliver() {
            while (!toWriter.isEmpty()) {
                toWriter.remove().run();
            }
        }

        LibC writersLibC() {
            return (LibC) Proxy.newProxyInstance(
                    QuietWriterTest.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                        if (method.getName().equals("close") && shared.contains((Integer) arguments[0])) {
                            return 0;
                        }
                        try {
                            return method.invoke(LIB_C, arguments);
                        } catch (InvocationTargetException e) {
                            throw e.getCause();
                        }
                    });
        }

        private final class WritersEnd implements OutboundChannel {
            @Override
            public boolean open(MemorySegment wish, Reader reader) {
                atWriter = reader;
                return true;
            }

            @Override
            public byte[] admissionKey() {
                return new byte[Admission.KEY_LENGTH_BYTES];
            }

            @Override
            public int takeDescriptor() {
                return descriptors.isEmpty() ? NO_DESCRIPTOR : descriptors.remove();
            }

            @Override
            public void drain(long nowNs) {
                deliver();
            }

            @Override
            public int number() {
                return 0;
            }

            @Override
            public boolean carriesDescriptors() {
                return true;
            }

            @Override
            public boolean report(int kind, MemorySegment payload) {
                if (room == 0) {
                    return false;
                }
                room--;
                if (discards) {
                    return true;
                }
                if (kind == QUIET_KIND) {
                    reader.onQuiet();
                    return true;
                }
                return reader.onRecord(kind, payload, 0);
            }

            @Override
            public boolean report(int kind, MemorySegment payload, int... fds) {
                throw new AssertionError("a writer hands over nothing");
            }
        }

        /** Its records come at once, and with them descriptors that stay this side's. */
        private final class ReadersEnd implements InboundChannel {
            @Override
            public int number() {
                return 0;
            }

            @Override
            public boolean watchesProcess() {
                return true;
            }

            @Override
            public boolean carriesDescriptors() {
                return true;
            }

            @Override
            public boolean report(int kind, MemorySegment payload) {
                toWriter.add(() -> atWriter.onRecord(kind, payload, 0));
                return true;
            }

            @Override
            public boolean report(int kind, MemorySegment payload, int... fds) {
                if (atWriter == null) {
                    return false; // the writer is not there yet; it is offered again
                }
                for (int fd : fds) {
                    descriptors.add(fd);
                    shared.add(fd);
                }
                atWriter.onRecord(kind, payload, 0);
                return true;
            }

            @Override
            public void onReady() {}

            @Override
            public void onOver(String detail) {}

            @Override
            public void dismiss(TransferFault fault, String detail) {
                throw new AssertionError(fault + " " + detail);
            }

            @Override
            public void onError(Throwable error) {
                throw new AssertionError(error);
            }
        }
    }

    private static final class NoEvents implements PathEvents {
        @Override
        public void onReady() {}

        @Override
        public void onFailed(TransferFault fault, String detail) {
            throw new AssertionError(fault + " " + detail);
        }

        @Override
        public void onPathOpened(Endpoint path) {}

        @Override
        public void onPathLost(Endpoint path) {}

        @Override
        public void onSent(long postId) {}
    }
}
