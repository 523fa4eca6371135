package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Both ends of one link in one process, or one end against a socket that speaks as the previous version did. */
final class AttachmentNumbersTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final byte[] KEY = new byte[Admission.KEY_LENGTH_BYTES];
    private static final long CONNECT_LIMIT_NS = 1_000_000;
    private static final String TAKEN = "taken";
    private static final int LOSSES = 1_000;
    private static final int LAST_WORD = PeerChannel.LAST_KIND;

    private final Arena arena = Arena.ofConfined();
    private long nowNs;
    private final EventLoop loop = new EventLoop(LIB_C, () -> nowNs);
    private final Figures figures = new Figures();
    private final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final SocketLinks links = new SocketLinks(loop, CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
    private final String here = links.listenLocal(TAKEN, port, figures);
    private final List<Copying> paths = new ArrayList<>();
    private final List<String> events = new ArrayList<>();

    AttachmentNumbersTest() {
        links.use(List.of(new FakeDomain(TAKEN, 0) {
            @Override
            public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long now) {
                paths.add(new Copying(channel));
                return paths.getLast();
            }
        }));
    }

    @AfterEach
    void close() {
        links.close();
        loop.close();
        arena.close();
    }

    /** Paths whose end may take a while. */
    private static final class Copying implements InboundPaths {
        final InboundChannel channel;
        boolean copies;
        boolean closed;

        Copying(InboundChannel channel) {
            this.channel = channel;
        }

        @Override
        public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
            channel.onReady();
            return true;
        }

        @Override
        public void stop() {}

        @Override
        public void onPeerGone() {
            closed = true;
        }

        @Override
        public boolean isOver() {
            return closed;
        }

        @Override
        public boolean isCopying() {
            return closed && copies;
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    /** How the paths of an attachment end, before the writer detaches. */
    enum End {
        BY_THE_WRITER,
        BY_THE_TARGET,
        BY_THE_TARGET_LATER,
        REFUSED
    }

    private void end(End how) {
        switch (how) {
            case BY_THE_TARGET -> {
                paths.getLast().closed = true;
                paths.getLast().channel.onOver("by itself");
            }
            case BY_THE_TARGET_LATER -> paths.getLast().copies = true;
            case BY_THE_WRITER, REFUSED -> {}
        }
    }

    private void work(OutboundLink link) {
        for (int i = 0; i < 4; i++) {
            loop.poll(0);
            links.poll(nowNs);
            if (link != null) {
                link.doWork(nowNs);
            }
        }
    }

    private OutboundLink dial() {
        OutboundLink link = links.connect(
                new EngineAddress(List.of(new TransportAddress(TAKEN, here))),
                KEY,
                new LinkEvents() {
                    @Override
                    public boolean onAsked(MemorySegment payload) {
                        return false;
                    }

                    @Override
                    public void onOpened() {
                        events.add("opened");
                    }

                    @Override
                    public void onLost(TransferFault fault, String detail) {
                        events.add(fault + " " + detail);
                    }
                },
                nowNs);
        work(link);
        assertThat(events).containsExactly("opened");
        return link;
    }

    /** Remembers what the target says to one attachment. */
    private static final class Heard implements PeerChannel.Reader {
        final List<String> given = new ArrayList<>();

        @Override
        public void onRecord(int kind, MemorySegment payload, long nowNs) {
            given.add(kind + " " + payload.get(ValueLayout.JAVA_INT_UNALIGNED, 0));
        }

        @Override
        public void onRefused(TransferFault fault, String detail) {
            given.add(detail);
        }

        @Override
        public void onError(Throwable error) {
            throw new AssertionError(error);
        }
    }

    private OutboundChannel attach(OutboundLink link, String transport, Heard heard) {
        OutboundChannel channel = link.channel(new FakeDomain(transport, 0));
        assertThat(channel.open(MemorySegment.NULL, heard)).isTrue();
        work(link);
        return channel;
    }

    private static MemorySegment number(int value) {
        MemorySegment number = MemorySegment.ofArray(new byte[Integer.BYTES]);
        number.set(ValueLayout.JAVA_INT_UNALIGNED, 0, value);
        return number;
    }

    @ParameterizedTest
    @EnumSource
    void shouldAttachAgainAfterEachOfAThousandLossesWhateverEndedThem(End end) {
        OutboundLink link = dial();
        Set<Integer> names = new HashSet<>();
        for (int loss = 0; loss < LOSSES; loss++) {
            Heard heard = new Heard();
            OutboundChannel channel = attach(link, end == End.REFUSED ? "unknown" : TAKEN, heard);
            if (end == End.REFUSED) {
                assertThat(heard.given).containsExactly("this engine has no transport unknown");
            } else {
                // What is said to one use is never heard by another.
                assertThat(channel.report(PeerChannel.FIRST_KIND, MemorySegment.NULL))
                        .isTrue();
                assertThat(paths.getLast().channel.report(LAST_WORD, number(loss)))
                        .isTrue();
                assertThat(paths.getLast().channel.number()).isEqualTo(channel.number());
                work(link);
                assertThat(heard.given).containsExactly(LAST_WORD + " " + loss);
            }
            names.add(channel.number());
            end(end);
            link.detach(channel);
            assertThat(channel.report(PeerChannel.FIRST_KIND, MemorySegment.NULL))
                    .isFalse();
            work(link);
            if (end == End.BY_THE_TARGET_LATER) {
                paths.getLast().copies = false;
                paths.getLast().channel.onOver("copied");
                work(link);
            }
            if (end != End.REFUSED) {
                assertThat(paths.getLast().channel.report(LAST_WORD, number(loss)))
                        .as("the next use would hear it")
                        .isFalse();
            }
        }
        assertThat(names).as("names for data sockets").hasSize(LOSSES);
        assertThat(events).containsExactly("opened");
        assertThat(port.closed).isEmpty();
        link.close();
    }

    @Test
    void shouldHaveNoMoreAttachmentsAtATimeThanTheLimitSays() {
        OutboundLink link = dial();
        List<OutboundChannel> channels = new ArrayList<>();
        for (int i = 0; i < Attachments.COUNT_MAX; i++) {
            channels.add(attach(link, TAKEN, new Heard()));
        }
        OutboundChannel tooMany = link.channel(new FakeDomain(TAKEN, 0));
        assertThat(tooMany.open(MemorySegment.NULL, new Heard())).isFalse();
        link.detach(tooMany);
        paths.get(3).copies = true;
        link.detach(channels.get(3));
        work(link);
        assertThat(tooMany.open(MemorySegment.NULL, new Heard()))
                .as("its number is not over")
                .isFalse();
        link.detach(channels.get(7));
        work(link);
        assertThat(tooMany.open(MemorySegment.NULL, new Heard())).isTrue();
        assertThat(Attach.number(tooMany.number())).isEqualTo(7);
        work(link);
        assertThat(events).containsExactly("opened");
        link.close();
    }

    /** The target would keep ring and paths to the end of the link. */
    @Test
    void shouldSayThatItDetachesAlsoWhenThereIsNoRoomForItAtOnce() {
        OutboundLink link = dial();
        OutboundChannel channel = attach(link, TAKEN, new Heard());
        MessageQueue messages = new MessageQueue(16);
        MemorySegment message = MemorySegment.ofArray(new byte[TransferEngine.MESSAGE_MAX_BYTES]);
        while (messages.offer(message)) {
            link.send(messages);
        }
        MemorySegment small = MemorySegment.ofArray(new byte[1]);
        while (channel.report(LAST_WORD, small)) {}
        link.detach(channel);
        for (int i = 0; i < 1_000 && !paths.getLast().closed; i++) {
            work(link);
        }
        assertThat(paths.getLast().closed).isTrue();
        assertThat(events).containsExactly("opened");
        link.close();
    }

    private int writerOfThePreviousVersion() {
        int fd = SOCKETS.connectAbstract(here);
        work(null);
        MemorySegment given = arena.allocate(Challenge.LENGTH_BYTES, 8);
        assertThat(LIB_C.read(fd, given, Challenge.LENGTH_BYTES)).isEqualTo(Challenge.LENGTH_BYTES);
        MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        Challenge asked = new Challenge(
                Hello.OLDEST_VERSION,
                Hello.OLDEST_VERSION,
                Challenge.parse(given).nonce());
        Hello answer = Hello.answer(asked, here, Hello.CONTROL, 0, KEY, new byte[Hello.NONCE_LENGTH_BYTES]);
        answer.encode(hello);
        assertThat(LIB_C.write(fd, hello, answer.lengthBytes())).isEqualTo(answer.lengthBytes());
        work(null);
        assertThat(types(fd)).containsExactly(ControlRecord.ACCEPTED);
        return fd;
    }

    /** The types of all records that have come. */
    private List<Integer> types(int fd) {
        MemorySegment in = arena.allocate(1 << 16, 8);
        long count = LIB_C.read(fd, in, in.byteSize());
        List<Integer> types = new ArrayList<>();
        for (long at = 0; at < count; at += 8 + in.get(ValueLayout.JAVA_INT, at + 4)) {
            types.add(in.get(ValueLayout.JAVA_INT, at));
        }
        return types;
    }

    private void say(int fd, int kind, int number, MemorySegment payload) {
        MemorySegment record = arena.allocate(8 + payload.byteSize(), 8);
        record.set(ValueLayout.JAVA_INT, 0, ControlRecord.type(kind, number));
        record.set(ValueLayout.JAVA_INT, 4, (int) payload.byteSize());
        record.asSlice(8).copyFrom(payload);
        assertThat(LIB_C.write(fd, record, record.byteSize())).isEqualTo(record.byteSize());
        work(null);
    }

    private void attach(int fd, int number) {
        say(fd, ControlRecord.ATTACH, number, new Attach(TAKEN, MemorySegment.NULL).encode());
    }

    /** The answers of both cross its detachment on the wire; the whole link ended by that. */
    @Test
    void shouldIgnoreWhatTheTargetSaysOfAnAttachmentThatIsDetachedMeanwhile() {
        OutboundLink link = dial();
        for (String transport : new String[] {"unknown", TAKEN}) {
            OutboundChannel channel = link.channel(new FakeDomain(transport, 0));
            Heard heard = new Heard();
            assertThat(channel.open(MemorySegment.NULL, heard)).isTrue();
            link.detach(channel);
            work(link);
            assertThat(heard.given).isEmpty();
            assertThat(events).containsExactly("opened");
        }
        link.close();
    }

    /** The writer would wait for its whole limit, and use nothing else meanwhile. */
    @Test
    void shouldRefuseAlsoWhenThereIsNoRoomForItAtOnce() {
        int fd = writerOfThePreviousVersion();
        attach(fd, 0);
        MemorySegment full = MemorySegment.ofArray(new byte[TransferEngine.MESSAGE_MAX_BYTES]);
        while (paths.getFirst().channel.report(LAST_WORD, full)) {}
        while (paths.getFirst().channel.report(LAST_WORD, MemorySegment.NULL)) {}
        say(fd, ControlRecord.ATTACH, 1, new Attach("unknown", MemorySegment.NULL).encode());
        List<Byte> bytes = new ArrayList<>();
        MemorySegment in = arena.allocate(1 << 16, 8);
        for (int idle = 0; idle < 10; ) {
            work(null);
            long count = LIB_C.read(fd, in, in.byteSize());
            idle = count > 0 ? 0 : idle + 1;
            for (long i = 0; i < count; i++) {
                bytes.add(in.get(ValueLayout.JAVA_BYTE, i));
            }
        }
        assertThat(lastType(bytes)).isEqualTo(ControlRecord.type(ControlRecord.REFUSED, 1));
        LIB_C.close(fd);
    }

    private static int lastType(List<Byte> bytes) {
        MemorySegment all = MemorySegment.ofArray(new byte[bytes.size()]);
        for (int i = 0; i < bytes.size(); i++) {
            all.set(ValueLayout.JAVA_BYTE, i, bytes.get(i));
        }
        int type = 0;
        for (long at = 0; at < all.byteSize(); at += 8 + all.get(ValueLayout.JAVA_INT_UNALIGNED, at + 4)) {
            type = all.get(ValueLayout.JAVA_INT_UNALIGNED, at);
        }
        return type;
    }

    /** It takes each number once, and ignores records of domains about a number that it has detached. */
    @Test
    void shouldServeAWriterOfThePreviousVersion() {
        int fd = writerOfThePreviousVersion();
        for (int i = 0; i < Attachments.COUNT_MAX; i++) {
            attach(fd, i);
            assertThat(types(fd)).as("before it has detached").isEmpty();
            say(fd, ControlRecord.DETACH, i, MemorySegment.NULL);
            assertThat(types(fd))
                    .containsExactly(ControlRecord.type(ControlRecord.RELEASED, i))
                    .allMatch(type -> ControlRecord.kind(type) >= PeerChannel.FIRST_KIND);
        }
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isZero();
        assertThat(paths).hasSize(Attachments.COUNT_MAX).allMatch(path -> path.closed);
        LIB_C.close(fd);
    }

    @Test
    void shouldRejectAPeerThatUsesANumberTwiceAtATimeOrOneThatIsNotNext() {
        int again = writerOfThePreviousVersion();
        attach(again, 0);
        attach(again, 0);
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        LIB_C.close(again);
        work(null);
        for (int number : new int[] {1, Attachments.COUNT_MAX, 255}) {
            long before = figures.of(TransferCounter.PATHS_REJECTED);
            int ahead = writerOfThePreviousVersion();
            attach(ahead, number);
            assertThat(figures.of(TransferCounter.PATHS_REJECTED))
                    .as("%d", number)
                    .isEqualTo(before + 1);
            LIB_C.close(ahead);
            work(null);
        }
    }

    /** A target of the previous version, or one that lies, confirms nothing or what was not asked: numbers are kept or the link ends. */
    @Test
    void shouldUseEachNumberOnceWhereNothingIsConfirmed() {
        WriterNumbers numbers = new WriterNumbers();
        for (int i = 0; i < Attachments.COUNT_MAX; i++) {
            assertThat(numbers.next()).isEqualTo(i);
            assertThat(numbers.isKnown(i)).isFalse();
            assertThat(numbers.take()).isEqualTo(i);
            assertThat(numbers.release(i)).as("it was not detached").isFalse();
            numbers.detach(i);
            assertThat(numbers.release(i)).as("that was not sent").isFalse();
            assertThat(numbers.sendOwed(type -> false)).isZero();
            assertThat(numbers.sendOwed(type -> true)).isEqualTo(1);
            assertThat(numbers.isKnown(i)).isTrue();
        }
        assertThat(numbers.next()).isEqualTo(WriterNumbers.NONE);
        assertThat(numbers.release(5)).isTrue();
        assertThat(numbers.release(5)).isFalse();
        assertThat(numbers.release(200)).isFalse();
        assertThat(numbers.next()).isEqualTo(5);
        assertThat(numbers.isKnown(5)).isTrue();
    }
}
