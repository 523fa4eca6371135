package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** A writer's and a target's end of one path over {@link StandInVerbs}, in time and with records that a test moves. One thread. */
final class PathPair implements PathEvents {
    static final int PAGE_BYTES = 64;
    static final int PAGE_COUNT = 512;
    static final int IMM = Imm.of(1, 0);
    static final int REGION_ID = 7;
    static final long CONNECT_LIMIT_NS = 1_000;

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    private record Said(int kind, MemorySegment payload) {}

    final Arena arena = Arena.ofConfined();
    final StandInVerbs library = new StandInVerbs(new StandInVerbs.Device(
            "nic",
            VerbsApi.IBV_PORT_ACTIVE,
            VerbsApi.IBV_LINK_LAYER_ETHERNET,
            List.of(VerbsSearch.gidOf(InetAddress.getLoopbackAddress())),
            VerbsApi.IBV_GID_TYPE_ROCE_V2));
    final OpenVerbs verbs = new OpenVerbs(library, new VerbsSearch(library, InetAddress.getLoopbackAddress()).find(""));
    final VerbsRegions regions = new VerbsRegions(verbs);
    final MemorySegment source = arena.allocate((long) PAGE_BYTES * PAGE_COUNT, PAGE_BYTES);
    final MemorySegment memory = arena.allocate((long) PAGE_BYTES * PAGE_COUNT, PAGE_BYTES);
    final Figures figures = new Figures();
    final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    final FakePort port = new FakePort(admission, memory, IMM, memory.byteSize());
    final TargetChannel targetChannel = new TargetChannel();
    final List<Long> sent = new ArrayList<>();
    final List<String> events = new ArrayList<>();
    final VerbsOutboundPaths writer;
    VerbsInboundPaths target;
    long nowNs;
    /** Whether the target hears what the writer says. */
    boolean targetHears = true;

    private final WriterChannel writerChannel = new WriterChannel();
    private final WriteBatch batch = new WriteBatch();
    private PairName wish;

    PathPair() {
        for (int i = 0; i < source.byteSize(); i++) {
            source.set(JAVA_BYTE, i, (byte) (i / PAGE_BYTES + i));
        }
        regions.add(REGION_ID, memory);
        regions.add(REGION_ID + 1, source);
        QueuePair pair = new QueuePair(verbs, true, VerbsOutboundPaths.depth(verbs.port()));
        writer = new VerbsOutboundPaths(
                regions, writerChannel, this, figures, pair, verbs.port(), nowNs + CONNECT_LIMIT_NS);
    }

    /** Until the path takes posts. */
    PathPair opened() {
        accept();
        turn();
        library.deliver(1);
        turn();
        return this;
    }

    void accept() {
        int depth = VerbsInboundPaths.depth(verbs.port());
        target = new VerbsInboundPaths(
                port,
                regionId -> regions.of(regionId).remote(),
                admission,
                figures,
                targetChannel,
                new QueuePair(verbs, false, depth),
                wish,
                depth,
                nowNs,
                nowNs + CONNECT_LIMIT_NS);
    }

    /** A duty cycle of both, in which each hears what the other has said. */
    void turn() {
        writer.doWork(nowNs);
        while (targetHears && !writerChannel.said.isEmpty()) {
            Said record = writerChannel.said.poll();
            target.onRecord(record.kind, record.payload, nowNs);
        }
        if (target != null) {
            target.poll(nowNs);
        }
        while (!targetChannel.said.isEmpty()) {
            Said record = targetChannel.said.poll();
            writerChannel.reader.onRecord(record.kind, record.payload, nowNs);
        }
        writer.doWork(nowNs);
    }

    private RegionDescriptor descriptor(int regionId) {
        return new RegionDescriptor(regionId, source.byteSize(), RegionDescriptor.VERSION, false);
    }

    /** Offers pages, each to its own place; returns how many were taken. */
    int post(long postId, int... pages) {
        PageList list = new PageList(pages, 0, pages.length, PAGE_BYTES, 0);
        return post(
                postId,
                new PagedWrites(
                        new Registered(descriptor(REGION_ID + 1), Memory.host(source)),
                        list,
                        descriptor(REGION_ID),
                        list,
                        PAGE_BYTES,
                        () -> IMM,
                        1),
                pages.length);
    }

    /** The same, where the peer's region is not known yet: asks for it first. */
    int postFirst(long postId, int... pages) {
        int taken = post(postId, pages);
        turn();
        return taken > 0 ? taken : post(postId, pages);
    }

    int postImmediate(long postId) {
        return post(postId, new ImmOnly(() -> IMM, 1), 1);
    }

    private int post(long postId, TransferRequest request, int count) {
        batch.set(postId, request, 0, count);
        int taken = writer.post(batch, postId);
        batch.clear();
        return taken;
    }

    boolean arrived(int page) {
        long at = (long) page * PAGE_BYTES;
        return memory.asSlice(at, PAGE_BYTES).mismatch(source.asSlice(at, PAGE_BYTES)) == -1;
    }

    void close() {
        writer.close();
        if (target != null) {
            target.close();
        }
        regions.close();
        verbs.close();
        library.close();
        arena.close();
    }

    @Override
    public void onSent(long postId) {
        sent.add(postId);
    }

    @Override
    public void onReady() {
        events.add("ready");
    }

    @Override
    public void onFailed(TransferFault fault, String detail) {
        events.add("failed " + fault + " " + detail);
    }

    @Override
    public void onPathOpened(Endpoint path) {
        events.add("opened");
    }

    @Override
    public void onPathLost(Endpoint path) {
        events.add("lost");
    }

    private final class WriterChannel implements OutboundChannel {
        final Deque<Said> said = new ArrayDeque<>();
        Reader reader;

        @Override
        public boolean open(MemorySegment asked, Reader newReader) {
            wish = PairName.parse(asked);
            reader = newReader;
            return true;
        }

        @Override
        public byte[] admissionKey() {
            return new byte[0];
        }

        @Override
        public int takeDescriptor() {
            return NO_DESCRIPTOR;
        }

        @Override
        public void drain(long now) {}

        @Override
        public int number() {
            return 0;
        }

        @Override
        public boolean carriesDescriptors() {
            return false;
        }

        @Override
        public boolean tell(int kind, MemorySegment payload) {
            return said.add(new Said(kind, payload));
        }

        @Override
        public boolean tell(int kind, MemorySegment payload, int... descriptors) {
            throw new AssertionError("verbs sends no descriptors");
        }
    }

    /** Remembers what the target's end says of itself. */
    static final class TargetChannel implements InboundChannel {
        final Deque<Said> said = new ArrayDeque<>();
        final List<String> events = new ArrayList<>();

        @Override
        public void onReady() {
            events.add("ready");
        }

        @Override
        public void onOver(String detail) {
            events.add("over: " + detail);
        }

        @Override
        public void dismiss(TransferFault fault, String detail) {
            events.add(fault + " " + detail);
        }

        @Override
        public void onError(Throwable error) {
            throw new AssertionError(error);
        }

        @Override
        public int number() {
            return 0;
        }

        @Override
        public boolean carriesDescriptors() {
            return false;
        }

        @Override
        public boolean tell(int kind, MemorySegment payload) {
            return said.add(new Said(kind, payload));
        }

        @Override
        public boolean tell(int kind, MemorySegment payload, int... descriptors) {
            throw new AssertionError("verbs sends no descriptors");
        }
    }
}
