package io.kvmessenger.transfer.shm;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.samehost.ImmRing;
import io.kvmessenger.transfer.samehost.MappedFile;
import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RingInboundPaths;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.socket.Descriptors;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeInboundChannel;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The writer's end of shared memory against a target that says what the test says. */
final class ShmDomainTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long NOW_NS = 0;
    private static final long CONNECT_LIMIT_NS = Long.MAX_VALUE / 2;
    /** F_DUPFD_CLOEXEC. */
    private static final int DUPLICATE = 1030;

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(LIB_C, () -> NOW_NS);
    private final Figures figures = new Figures();
    private final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final List<String> lost = new ArrayList<>();
    private final List<Endpoint> opened = new ArrayList<>();
    private final List<Long> sent = new ArrayList<>();
    private final int gift = Descriptors.gift();
    private final ShmDomain domain = new ShmDomain(loop, CONNECT_LIMIT_NS, port, figures, "here");
    private final TargetsEnd channel = new TargetsEnd();

    @AfterEach
    void close() {
        domain.close();
        LIB_C.close(gift);
        loop.close();
        arena.close();
    }

    /** What the writer says is remembered; what the target says is handed to it. */
    private static final class TargetsEnd implements OutboundChannel {
        final List<Integer> reported = new ArrayList<>();
        final ArrayDeque<Integer> descriptors = new ArrayDeque<>();
        boolean carriesDescriptors = true;
        /** For how many of the next records there is no room. */
        int refused;

        private Reader reader;

        @Override
        public boolean open(MemorySegment wish, Reader toHear) {
            reader = toHear;
            return true;
        }

        /** The target's descriptors stay its own. */
        void say(int kind, MemorySegment payload, int... fds) {
            for (int fd : fds) {
                descriptors.add(LIB_C.fcntl(fd, DUPLICATE, 0));
            }
            reader.onRecord(kind, payload, NOW_NS);
            descriptors.forEach(LIB_C::close);
            descriptors.clear();
        }

        @Override
        public int number() {
            return 0;
        }

        @Override
        public boolean carriesDescriptors() {
            return carriesDescriptors;
        }

        @Override
        public boolean report(int kind, MemorySegment payload) {
            if (refused > 0) {
                refused--;
                return false;
            }
            reported.add(kind);
            return true;
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... fds) {
            throw new AssertionError("a writer sends no descriptors");
        }

        @Override
        public byte[] admissionKey() {
            throw new AssertionError("its link has shown the key");
        }

        @Override
        public int takeDescriptor() {
            return descriptors.isEmpty() ? NO_DESCRIPTOR : descriptors.remove();
        }

        @Override
        public void drain(long nowNs) {}
    }

    private OutboundPaths attach() {
        return domain.attach(
                channel,
                "there",
                new PathEvents() {
                    @Override
                    public void onReady() {}

                    @Override
                    public void onFailed(TransferFault fault, String detail) {
                        lost.add(fault + " " + detail);
                    }

                    @Override
                    public void onPathOpened(Endpoint path) {
                        opened.add(path);
                    }

                    @Override
                    public void onPathLost(Endpoint path) {
                        opened.remove(path);
                    }

                    @Override
                    public void onSent(long postId) {
                        sent.add(postId);
                    }
                },
                NOW_NS);
    }

    /** Memory is handed over by descriptors. */
    @Test
    void shouldNotTryWhereNoDescriptorCanTravel() {
        channel.carriesDescriptors = false;
        assertThatThrownBy(this::attach).hasMessageContaining("Unix socket");
    }

    @Test
    void shouldEndWithATargetThatSendsRegionsThatWereNotAskedFor() throws IOException {
        try (Accepted writer = new Accepted().opened()) {
            channel.say(SameHostRecord.REGION, new RegionRecord(3, 4096).encode(), gift);
            assertThat(lost).containsExactly("PROTOCOL the peer sent a region that was not asked for");
            assertThat(Descriptors.gifts()).isEqualTo(1);
            assertThat(writer.paths.doWork(NOW_NS)).isZero();
        }
    }

    @Test
    void shouldMapWhatIsOfferedWhileThereIsNothingElseToDo() {
        int fd = ForeignMemory.createFile(LIB_C, "offered", 2 * MappedFile.CHUNK_BYTES);
        try (Accepted writer = new Accepted().opened()) {
            assertThat(writer.paths.doWork(NOW_NS)).isZero();
            channel.say(SameHostRecord.REGION_OFFERED, new RegionRecord(3, 2 * MappedFile.CHUNK_BYTES).encode(), fd);
            channel.say(SameHostRecord.REGION_OFFERED, new RegionRecord(4, MappedFile.CHUNK_BYTES).encode());
            channel.say(SameHostRecord.REGION_OFFERED, new RegionRecord(5, 4 * MappedFile.CHUNK_BYTES).encode(), fd);
            assertThat(lost).as("what cannot be mapped now is asked for later").isEmpty();
            writer.post(1);
            assertThat(writer.paths.doWork(NOW_NS)).as("a write goes first").isEqualTo(1);
            int cycles = 0;
            while (writer.paths.doWork(NOW_NS) == OutboundPaths.LOOK_SOON) {
                cycles++;
            }
            assertThat(cycles).as("two pieces, and the end").isEqualTo(3);
            assertThat(writer.paths.doWork(NOW_NS)).isZero();
        }
        LIB_C.close(fd);
    }

    @Test
    void shouldMapWhatIsOfferedBeforeItsPathOpens() {
        try (Accepted writer = new Accepted()) {
            writer.offer(3, 2);
            int cycles = 0;
            while (writer.paths.doWork(NOW_NS) == 1) {
                cycles++;
            }
            assertThat(cycles).as("two pieces, and the end").isEqualTo(3);
            assertThat(opened).as("more may be offered").isEmpty();
            assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(OutboundPaths.LOOK_SOON);
            writer.opened();
            assertThat(writer.paths.doWork(NOW_NS)).isZero();
        }
    }

    @Test
    void shouldOpenItsPathAtItsDeadlineWhateverIsLeftToMap() {
        try (Accepted writer = new Accepted()) {
            writer.offer(3, 4);
            assertThat(writer.paths.doWork(NOW_NS + ShmOutboundPaths.MAPPED_FIRST_NS - 1))
                    .isEqualTo(1);
            assertThat(opened).isEmpty();
            writer.paths.doWork(NOW_NS + ShmOutboundPaths.MAPPED_FIRST_NS);
            assertThat(opened)
                    .as("also of a target that never says that this was all")
                    .hasSize(1);
            assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(OutboundPaths.LOOK_SOON);
        }
    }

    /** It may have given the attachment up: what is written there is completed, and never counted. */
    @Test
    void shouldNotOpenItsPathBeforeItsTargetHasShownThatItTakesWhatIsPushed() {
        try (Accepted writer = new Accepted()) {
            long lateNs = NOW_NS + ShmOutboundPaths.MAPPED_FIRST_NS;
            assertThat(writer.paths.doWork(lateNs)).as("a record will wake it").isZero();
            assertThat(opened).isEmpty();
            writer.offer(3, 1);
            writer.paths.doWork(lateNs);
            assertThat(opened).hasSize(1);
        }
    }

    @Test
    void shouldGiveUpATargetThatDoesNotShowThatItTakesWhatIsPushed() {
        try (Accepted writer = new Accepted()) {
            writer.paths.doWork(NOW_NS + CONNECT_LIMIT_NS + 1);
            assertThat(opened).isEmpty();
            assertThat(lost).containsExactly("UNREACHABLE the peer did not take the mapped ring in time");
        }
    }

    @Test
    void shouldSayThatItsRingIsMappedWhenThereIsRoomForThat() {
        channel.refused = 2;
        try (Accepted writer = new Accepted()) {
            assertThat(channel.reported).isEmpty();
            assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(OutboundPaths.LOOK_SOON);
            assertThat(channel.reported).isEmpty();
            writer.paths.doWork(NOW_NS);
            writer.paths.doWork(NOW_NS);
            assertThat(channel.reported).containsExactly(SameHostRecord.READY);
        }
    }

    @Test
    void shouldReportNoLostPathThatHasNotOpened() {
        try (Accepted writer = new Accepted()) {
            channel.say(SameHostRecord.REGION, new RegionRecord(3, 4096).encode());
            assertThat(lost).hasSize(1);
            assertThat(writer.paths.doWork(NOW_NS)).isZero();
            assertThat(opened).isEmpty();
            assertThat(figures.of(TransferCounter.PATHS_LOST)).isZero();
        }
    }

    @Test
    void shouldOfferEachRegionOnceToAPeerThatIsReady() {
        FakeInboundChannel peers = new FakeInboundChannel(
                record -> String.valueOf(RegionRecord.parse(record).regionId()));
        peers.carriesDescriptors = true;
        OfferedRegions regions = new OfferedRegions();
        regions.add(new RemoteKey(1, 4096, gift));
        regions.add(new RemoteKey(2, 4096, gift));
        RingInboundPaths paths = new RingInboundPaths(
                loop, port, new FileSender(id -> null, regions), admission, figures, peers, false, Long.MAX_VALUE / 2);
        paths.poll(NOW_NS);
        assertThat(peers.reported)
                .as("not to one that is not ready")
                .containsExactly(String.valueOf(SameHostRecord.ACCEPTED));
        paths.onRecord(SameHostRecord.READY, MemorySegment.NULL, NOW_NS);
        paths.poll(NOW_NS);
        paths.poll(NOW_NS);
        regions.remove(new RemoteKey(1, 4096, gift));
        regions.add(new RemoteKey(3, 4096, gift));
        paths.poll(NOW_NS);
        assertThat(peers.reported)
                .containsExactly(
                        String.valueOf(SameHostRecord.ACCEPTED),
                        SameHostRecord.REGION_OFFERED + " 1",
                        SameHostRecord.REGION_OFFERED + " 2",
                        String.valueOf(SameHostRecord.ALL_OFFERED),
                        SameHostRecord.REGION_OFFERED + " 3");
        paths.close();
    }

    @Test
    void shouldKeepNothingOfATargetThatSendsTooLittle() throws IOException {
        OutboundPaths paths = attach();
        channel.say(SameHostRecord.ACCEPTED, MemorySegment.NULL, gift);
        assertThat(lost).hasSize(1);
        assertThat(Descriptors.gifts()).isEqualTo(1);
        paths.close();
    }

    /** What was pushed needs not be sent again: it is told as sent before the mapping is told as lost. */
    @Test
    void shouldReportWhatWasCopiedBeforeItFails() {
        try (Accepted writer = new Accepted().opened()) {
            Endpoint path = opened.getFirst();
            assertThat(writer.post(1)).isEqualTo(1);
            writer.ring.park();
            channel.say(SameHostRecord.REGION, new RegionRecord(3, 4096).encode());
            assertThat(sent).containsExactly(1L);
            assertThat(opened).doesNotContain(path);
            assertThat(writer.wasWoken()).isTrue();
            assertThat(writer.ring.take()).isNotEqualTo(ImmRing.EMPTY);
            assertThat(lost).hasSize(1);
        }
    }

    /** In the words of proc(5), the mapping is not copied at a fork. */
    @Test
    void shouldKeepMappingsFromChildren() throws IOException {
        int fd = ForeignMemory.createFile(LIB_C, "kvm-no-child", ImmRing.LENGTH_BYTES);
        MappedFile file = MappedFile.map(LIB_C, fd, ImmRing.LENGTH_BYTES);
        List<String> lines = Files.readAllLines(Path.of("/proc/self/smaps"));
        int at = 0;
        while (!lines.get(at).contains("kvm-no-child")) {
            at++;
        }
        while (!lines.get(at).startsWith("VmFlags:")) {
            at++;
        }
        assertThat(lines.get(at).split(" ", -1)).contains("dc");
        file.close();
        LIB_C.close(fd);
    }

    /** A writer that a target has accepted, and what it got; the ring is the target's, as the target sees it. */
    private final class Accepted implements AutoCloseable {
        final OutboundPaths paths = attach();
        final int ringFd = ForeignMemory.createFile(LIB_C, "ring", ImmRing.LENGTH_BYTES);
        final int wakeFd = LIB_C.eventfd(0, MemoryApi.EFD_CLOEXEC | MemoryApi.EFD_NONBLOCK);
        final MappedFile ringFile = MappedFile.map(LIB_C, ringFd, ImmRing.LENGTH_BYTES);
        final ImmRing ring = new ImmRing(ringFile.memory());

        Accepted() {
            boolean room = channel.refused == 0;
            channel.say(SameHostRecord.ACCEPTED, MemorySegment.NULL, ringFd, wakeFd);
            assertThat(channel.reported).isEqualTo(room ? List.of(SameHostRecord.READY) : List.of());
        }

        /** Its path opens. */
        Accepted opened() {
            channel.say(SameHostRecord.ALL_OFFERED, MemorySegment.NULL);
            assertThat(paths.doWork(NOW_NS)).isEqualTo(1);
            assertThat(opened).hasSize(1);
            return this;
        }

        void offer(int regionId, int chunkCount) {
            int fd = ForeignMemory.createFile(LIB_C, "offered", chunkCount * MappedFile.CHUNK_BYTES);
            RegionRecord region = new RegionRecord(regionId, chunkCount * MappedFile.CHUNK_BYTES);
            channel.say(SameHostRecord.REGION_OFFERED, region.encode(), fd);
            LIB_C.close(fd);
        }

        /** Returns the units taken. */
        int post(long postId) {
            WriteBatch batch = new WriteBatch();
            batch.set(0, new TransferRequest.ImmOnly(() -> Imm.of(1, 0), 1), 0, 1);
            return opened.getFirst().post(batch, postId);
        }

        boolean wasWoken() {
            return LIB_C.read(wakeFd, arena.allocate(Long.BYTES), Long.BYTES) == Long.BYTES;
        }

        @Override
        public void close() {
            paths.close();
            ringFile.close();
            LIB_C.close(wakeFd);
            LIB_C.close(ringFd);
        }
    }

    @Test
    void shouldWakeATargetThatSleepsOnceAndNoOther() {
        try (Accepted writer = new Accepted().opened()) {
            assertThat(writer.post(1)).isEqualTo(1);
            assertThat(sent).as("nothing is told from within a post").isEmpty();
            assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(1);
            assertThat(sent).containsExactly(1L);
            assertThat(writer.wasWoken()).as("the target was awake").isFalse();
            writer.ring.park();
            writer.post(2);
            writer.paths.doWork(NOW_NS);
            assertThat(writer.wasWoken()).isTrue();
            writer.post(3);
            writer.paths.doWork(NOW_NS);
            assertThat(writer.wasWoken()).as("it is on its way").isFalse();
        }
    }

    /** Nothing tells when the target has taken from a full ring. */
    @Test
    void shouldAskToBeTurnedSoonWhileTheRingIsFull() {
        try (Accepted writer = new Accepted().opened()) {
            int pushed = 0;
            while (writer.post(pushed) > 0) {
                pushed++;
                assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(1);
            }
            assertThat(pushed).isEqualTo(ImmRing.CAPACITY);
            assertThat(writer.paths.doWork(NOW_NS)).isEqualTo(OutboundPaths.LOOK_SOON);
            assertThat(writer.ring.take()).isNotEqualTo(ImmRing.EMPTY);
            assertThat(writer.post(pushed)).isEqualTo(1);
        }
    }

    @Test
    void shouldMapNoFileThatMayShrink() {
        assertThat(LIB_C.ftruncate(gift, 4096)).isZero();
        assertThatThrownBy(() -> MappedFile.map(LIB_C, gift, 4096)).hasMessageContaining("F_SEAL_SHRINK");
    }
}
