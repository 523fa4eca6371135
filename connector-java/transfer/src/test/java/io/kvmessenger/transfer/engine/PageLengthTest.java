package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.RemoteKey;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Pages of lengths around every limit, on every way into a peer's queue: what is longer than one write or one gathering
 * is refused before it is queued, and no device ever copies outside the pinned memory.
 */
final class PageLengthTest {
    private static final int SLAB_BYTES = 256;
    private static final StagingLimits LIMITS = new StagingLimits(SLAB_BYTES, 3, 2);
    private static final int WRITE_MAX_BYTES = 400;
    private static final long REGION_BYTES = 1L << 32;
    private static final int REQUESTS_MAX = 8;

    /** How a page gets into the queue. */
    enum Entry {
        SINGLE,
        PAGED,
        SCATTER,
        READ
    }

    /** What takes the page from there, and the longest page that it can take. */
    enum Carrier {
        GATHERS(2 * SLAB_BYTES),
        READS_DEVICES(WRITE_MAX_BYTES),
        GATHERS_AND_IS_SHORT(WRITE_MAX_BYTES),
        FROM_HOST_AND_IS_SHORT(WRITE_MAX_BYTES);

        final long pageMaxBytes;

        Carrier(long pageMaxBytes) {
            this.pageMaxBytes = pageMaxBytes;
        }
    }

    record Case(Entry entry, Carrier carrier, int pageBytes, int pageCount) {}

    static Stream<Case> cases() {
        long[] limits = {SLAB_BYTES, 2 * SLAB_BYTES, WRITE_MAX_BYTES, 5 * SLAB_BYTES, 1 << 30};
        int[] lengths = LongStream.of(limits)
                .flatMap(limit -> LongStream.of(1, limit / 2, limit - 1, limit, limit + 1))
                .distinct()
                .mapToInt(Math::toIntExact)
                .toArray();
        List<Case> cases = new ArrayList<>();
        for (Entry entry : Entry.values()) {
            for (Carrier carrier : Carrier.values()) {
                for (int lengthBytes : lengths) {
                    for (int count : entry == Entry.PAGED || entry == Entry.READ ? new int[] {1, 3} : new int[] {1}) {
                        cases.add(new Case(entry, carrier, lengthBytes, count));
                    }
                }
            }
        }
        return cases.stream();
    }

    /** Pinned memory that notices each copy which leaves it; copies nothing. */
    private final class CheckedCopies implements DeviceAccess, CopyStream {
        private final List<MemorySegment> pinned = new ArrayList<>();
        private final List<String> outside = new ArrayList<>();
        private long marks;

        @Override
        public String refusal(int ordinal) {
            return null;
        }

        @Override
        public CopyStream openStream(int ordinal) {
            return this;
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            pinned.add(arena.allocate(lengthBytes));
            return pinned.getLast();
        }

        @Override
        public void toHost(long hostAddress, long deviceAddress, long lengthBytes) {
            boolean inside = pinned.stream()
                    .anyMatch(memory -> hostAddress >= memory.address()
                            && hostAddress + lengthBytes <= memory.address() + memory.byteSize());
            if (!inside) {
                outside.add(lengthBytes + " bytes to " + hostAddress);
            }
        }

        @Override
        public void fromHost(long deviceAddress, long hostAddress, long lengthBytes) {}

        @Override
        public void onDevice(long targetAddress, long sourceAddress, long lengthBytes) {}

        @Override
        public long mark() {
            return ++marks;
        }

        @Override
        public boolean isDone(long serial) {
            return true;
        }

        @Override
        public void close() {}
    }

    private static final class Carrying extends FakeDomain {
        private final Carrier carrier;

        Carrying(Carrier carrier) {
            super("carrier", Long.MAX_VALUE / 2);
            this.carrier = carrier;
        }

        @Override
        public RemoteKey register(Region region) {
            return new RemoteKey(region.descriptor().regionId(), REGION_BYTES, Memory.Host.NOT_SHAREABLE);
        }

        @Override
        public boolean canRead(Memory memory) {
            return memory instanceof Memory.Host || carrier == Carrier.READS_DEVICES;
        }

        @Override
        public Capabilities capabilities() {
            return Capabilities.PLAIN.gathering(carrier == Carrier.GATHERS ? Long.MAX_VALUE : WRITE_MAX_BYTES);
        }
    }

    /** Takes everything at once. */
    private static final class Taking implements Endpoint {
        int taken;

        @Override
        public int post(WriteBatch batch, long postId) {
            taken += batch.unitCount();
            return batch.unitCount();
        }
    }

    private final Arena arena = Arena.ofConfined();
    private final CheckedCopies copies = new CheckedCopies();
    private final RegionTable regions = new RegionTable(new FfmLibC(), copies);
    private final FakeLinks links = new FakeLinks();
    private final Taking path = new Taking();
    private RegisteredRegion source;
    private OutboundPeer peer;
    private RemoteWindow window;

    @AfterEach
    void close() {
        arena.close();
    }

    private void open(Carrier carrier) {
        Carrying domain = new Carrying(carrier);
        regions.use(List.of(domain));
        source = regions.add(
                carrier == Carrier.FROM_HOST_AND_IS_SHORT
                        ? Memory.host(ForeignMemory.at(1L << 21, REGION_BYTES))
                        : new Memory.Device(0, 1L << 20, REGION_BYTES, Memory.HandleKind.NONE));
        peer = new OutboundPeer(
                1,
                "peer",
                new OutboundPeer.Target(
                        new EngineAddress(List.of(domain.at("there"))),
                        new byte[Admission.KEY_LENGTH_BYTES],
                        links,
                        List.of(domain),
                        new Staging(copies, LIMITS),
                        LinkSharing.ofEngine().loads()),
                REQUESTS_MAX,
                new Allowances(regions),
                new CompletionRing(64, () -> {}),
                new Figures(),
                () -> 0);
        peer.connect(0);
        peer.doWork(0);
        domain.events.onReady();
        domain.events.onPathOpened(path);
        window = peer.allowances().allow(Imm.of(1, 0), area(), TrafficClass.URGENT);
    }

    private WindowArea area() {
        return WindowArea.of(source.descriptor(), WindowRanges.ofEqual(new long[] {0}, REGION_BYTES));
    }

    private static PageList pages(Case at) {
        return new PageList(new int[] {0, 1, 2}, 0, at.pageCount, at.pageBytes, 0);
    }

    /** Returns why the page was not taken, or null. */
    private String put(Case at) {
        return switch (at.entry) {
            case SINGLE -> submit(new SingleWrite(source, 0, source.descriptor(), 0, at.pageBytes, window, 1));
            case PAGED ->
                submit(new PagedWrites(source, pages(at), source.descriptor(), pages(at), at.pageBytes, window, 1));
            case SCATTER -> scatter(at);
            case READ -> read(at);
        };
    }

    private String submit(TransferRequest request) {
        String refusal = peer.refusal(request);
        if (refusal == null) {
            peer.offer(request, 1, WriteLedger.OF_USER);
        } else {
            assertThatThrownBy(() -> peer.offer(request, 1, WriteLedger.OF_USER))
                    .as("a way into the queue that leaves the check out")
                    .isInstanceOf(AssertionError.class);
        }
        return refusal;
    }

    private String scatter(Case at) {
        OutboundGroup group = new OutboundGroup("all", List.of(peer));
        GroupRequest request = new GroupRequest.Scatter(
                source, List.of(new GroupRequest.Scatter.Slice(0, at.pageBytes, source.descriptor(), 0, window, 1)));
        String refusal = group.refusal(request);
        if (refusal == null) {
            new GroupPosts().begin(group, request, 1);
        }
        return refusal;
    }

    private String read(Case at) {
        ReadDesk desk = new ReadDesk(new ReadDesk.Engine() {
            @Override
            public boolean hasRoom() {
                return true;
            }

            @Override
            public void wake(OutboundPeer reader) {}

            @Override
            public void lose(OutboundPeer reader, String detail) {
                throw new AssertionError(detail);
            }
        });
        var open = desk.open(peer, List.of(source), area(), 5, 1);
        int perPart = Math.min(at.pageCount, ReadAsk.pagesPerPart(at.pageBytes));
        PageList list = new PageList(new int[] {0, 1, 2}, 0, perPart, at.pageBytes, 0);
        int answered = 0;
        for (boolean hears : new boolean[] {false, true}) {
            ReadAsk ask = new ReadAsk(
                    Imm.of(1, 0), 0, hears, open.key(), source.descriptor().regionId(), list, 1, list, at.pageBytes);
            peer.onAsked(ask.encode(MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES])));
            desk.onAsked(peer);
            MemorySegment answer = peer.answers().peek();
            if (answer == null) {
                return null;
            }
            answered = ReadAnswer.parse(answer).outcome();
            assertThat(answered).isEqualTo(hears ? ReadAnswer.TOO_LONG : ReadAnswer.OUTSIDE);
            peer.answers().release();
        }
        return "outcome " + answered;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldRefuseAPageThatIsTooLongAndCopyNoneOutsideThePinnedMemory(Case at) {
        open(at.carrier);
        String refusal = put(at);
        assertThat(refusal == null).as("taken: " + refusal).isEqualTo(at.pageBytes <= at.carrier.pageMaxBytes);
        for (int i = 0; i < 8; i++) {
            peer.doWork(0);
        }
        assertThat(peer.isLost()).isFalse();
        assertThat(copies.outside).isEmpty();
        assertThat(path.taken > 0).as("reached its path").isEqualTo(refusal == null);
    }
}
