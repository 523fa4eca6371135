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
import io.kvmessenger.transfer.device.DeviceFault;
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
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;

/** A writer's and a target's ends of their paths over {@link StandInVerbs}, in time and with records that a test moves. One thread. */
final class PathPair implements PathEvents {
    static final int PAGE_BYTES = 64;
    static final int PAGE_COUNT = 512;
    static final int IMM = Imm.of(1, 0);
    static final int REGION_ID = 7;
    static final long CONNECT_LIMIT_NS = 1_000;
    static final VerbsService SERVICE = new VerbsService(104, 5, 3);

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    private record Given(int kind, MemorySegment payload) {}

    final Arena arena = Arena.ofConfined();
    final StandInVerbs library;
    final List<Nic> writerNics;
    /** The same one where each side has one device only. */
    final List<Nic> targetNics;

    private final boolean sharedNics;

    final MemorySegment source = arena.allocate((long) PAGE_BYTES * PAGE_COUNT, PAGE_BYTES);
    final MemorySegment memory = arena.allocate((long) PAGE_BYTES * PAGE_COUNT, PAGE_BYTES);
    final Figures figures = new Figures();
    final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    final FakePort port = new FakePort(admission, memory, IMM, memory.byteSize());
    final TargetChannel targetChannel = new TargetChannel();
    final List<Long> sent = new ArrayList<>();
    final List<String> events = new ArrayList<>();
    /** By their network; the last one that was opened. */
    final Map<Integer, Endpoint> paths = new TreeMap<>();

    final VerbsOutboundPaths writer;
    VerbsInboundPaths target;
    long nowNs;
    /** Whether the target hears what the writer says. */
    boolean targetHears = true;

    /** What the target's port had counted when kernels were last made to see what was written. */
    long countedWhenMadeVisible = -1;
    /** Thrown where they cannot be. */
    DeviceFault invisible;

    /** How many more connections find the hardware address of the peer's port at once. */
    int answers = Integer.MAX_VALUE;

    private final List<Runnable> unanswered = new ArrayList<>();
    private final WriterChannel writerChannel = new WriterChannel();
    private final WriteBatch batch = new WriteBatch();
    private MemorySegment wish;

    PathPair() {
        this(List.of("nic"), List.of("nic"));
    }

    /** With devices that are called w0, w1, ... at the writer, and t0, t1, ... at the target. */
    PathPair(int writerDevices, int targetDevices) {
        this(names("w", writerDevices), names("t", targetDevices));
    }

    private PathPair(List<String> writerDevices, List<String> targetDevices) {
        List<String> all = new ArrayList<>(new LinkedHashSet<>(writerDevices));
        targetDevices.stream().filter(name -> !all.contains(name)).forEach(all::add);
        library = new StandInVerbs(all.stream().map(PathPair::device).toArray(StandInVerbs.Device[]::new));
        writerNics = Nic.openAll(library, search(writerDevices), SERVICE, this::connect);
        sharedNics = targetDevices.equals(writerDevices);
        targetNics = sharedNics ? writerNics : Nic.openAll(library, search(targetDevices), SERVICE, this::connect);
        for (int i = 0; i < source.byteSize(); i++) {
            source.set(JAVA_BYTE, i, (byte) (i / PAGE_BYTES + i));
        }
        targetNics.forEach(nic -> nic.regions().add(REGION_ID, memory));
        writerNics.forEach(nic -> nic.regions().add(REGION_ID + 1, source));
        writer = new VerbsOutboundPaths(writerNics, writerChannel, this, figures, CONNECT_LIMIT_NS, nowNs);
    }

    private void connect(Runnable connection) {
        if (answers > 0) {
            answers--;
            connection.run();
        } else {
            unanswered.add(connection);
        }
    }

    private void makeVisible() {
        countedWhenMadeVisible = port.arrivedWeight;
        if (invisible != null) {
            throw invisible;
        }
    }

    /** The network answers what it has been asked for, and whatever it is asked for next. */
    void answer() {
        answers = Integer.MAX_VALUE;
        unanswered.forEach(Runnable::run);
        unanswered.clear();
    }

    private static List<String> names(String prefix, int count) {
        return IntStream.range(0, count).mapToObj(i -> prefix + i).toList();
    }

    private static StandInVerbs.Device device(String name) {
        return new StandInVerbs.Device(
                name,
                VerbsApi.IBV_PORT_ACTIVE,
                VerbsApi.IBV_LINK_LAYER_ETHERNET,
                List.of(VerbsSearch.gidOf(InetAddress.getLoopbackAddress())),
                VerbsApi.IBV_GID_TYPE_ROCE_V2);
    }

    private List<VerbsPort> search(List<String> devices) {
        return new VerbsSearch(library, InetAddress.getLoopbackAddress()).find(devices);
    }

    /** Until the paths take posts. */
    PathPair opened() {
        accept();
        turn();
        library.deliver(Endpoint.NETWORKS_MAX);
        turn();
        return this;
    }

    void accept() {
        Nic.parseCount(wish);
        target = new VerbsInboundPaths(
                targetNics,
                port,
                (nic, regionId) -> nic.regions().of(regionId).remote(),
                this::makeVisible,
                admission,
                figures,
                targetChannel,
                nowNs,
                CONNECT_LIMIT_NS);
    }

    /** The path of the first network. */
    Endpoint path() {
        return paths.get(0);
    }

    /** Duty cycles of both, in which each hears what the other has said, until neither says more. */
    void turn() {
        do {
            writer.doWork(nowNs);
            while (targetHears && target != null && !writerChannel.given.isEmpty()) {
                Given record = writerChannel.given.poll();
                target.onRecord(record.kind, record.payload, nowNs);
            }
            if (target != null) {
                target.poll(nowNs);
            }
            while (!targetChannel.given.isEmpty()) {
                Given record = targetChannel.given.poll();
                writerChannel.reader.onRecord(record.kind, record.payload, nowNs);
            }
            writer.doWork(nowNs);
        } while (targetHears && target != null && !writerChannel.given.isEmpty());
    }

    /** The target says something that it should not. */
    void targetSays(int kind, MemorySegment payload) {
        writerChannel.reader.onRecord(kind, payload, nowNs);
    }

    /** The writer says something that it should not. */
    void writerSays(int kind, MemorySegment payload) {
        target.onRecord(kind, payload, nowNs);
    }

    /** The writer hears how many devices the target has, and no more. */
    void hearDevices() {
        Given record = targetChannel.given.poll();
        targetSays(record.kind, record.payload);
    }

    private RegionDescriptor descriptor(int regionId) {
        return new RegionDescriptor(regionId, source.byteSize(), RegionDescriptor.VERSION, false);
    }

    /** Offers pages to the first network's path, each to its own place; returns how many were taken. */
    int post(long postId, int... pages) {
        return postTo(path(), postId, pages);
    }

    int postTo(Endpoint path, long postId, int... pages) {
        PageList list = new PageList(pages, 0, pages.length, PAGE_BYTES, 0);
        return post(
                path,
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
        return postFirstTo(path(), postId, pages);
    }

    int postFirstTo(Endpoint path, long postId, int... pages) {
        int taken = postTo(path, postId, pages);
        turn();
        return taken > 0 ? taken : postTo(path, postId, pages);
    }

    /** Offers the first pages of memory that is a device's and registered as such. */
    int postFromDevice(long postId, Memory.Device device, int pageCount) {
        int[] pages = IntStream.range(0, pageCount).toArray();
        PageList list = new PageList(pages, 0, pageCount, PAGE_BYTES, 0);
        Registered region = new Registered(descriptor(REGION_ID + 2), device);
        return post(
                path(),
                postId,
                new PagedWrites(region, list, descriptor(REGION_ID), list, PAGE_BYTES, () -> IMM, 1),
                pageCount);
    }

    /** Offers the first pages of the region, of which another place has the bytes. */
    int postGathered(long postId, MemorySegment host, int pageCount) {
        int[] pages = IntStream.range(0, pageCount).toArray();
        PageList list = new PageList(pages, 0, pageCount, PAGE_BYTES, 0);
        Memory onDevice = new Memory.Device(0, 1 << 20, source.byteSize(), Memory.HandleKind.NONE);
        Registered region = new Registered(descriptor(REGION_ID + 1), onDevice);
        TransferRequest request = new PagedWrites(region, list, descriptor(REGION_ID), list, PAGE_BYTES, () -> IMM, 1);
        batch.set(postId, request, 0, pageCount);
        batch.gatheredIn(host, 0);
        int taken = path().post(batch, postId);
        batch.clear();
        return taken;
    }

    int postImmediate(long postId) {
        return post(path(), postId, new ImmOnly(() -> IMM, 1), 1);
    }

    private int post(Endpoint path, long postId, TransferRequest request, int count) {
        batch.set(postId, request, 0, count);
        int taken = path.post(batch, postId);
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
        writerNics.forEach(Nic::close);
        if (!sharedNics) {
            targetNics.forEach(Nic::close);
        }
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
        paths.put(path.network(), path);
    }

    @Override
    public void onPathLost(Endpoint path) {
        events.add("lost");
    }

    private final class WriterChannel implements OutboundChannel {
        final Deque<Given> given = new ArrayDeque<>();
        Reader reader;

        @Override
        public boolean open(MemorySegment asked, Reader newReader) {
            wish = asked;
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
        public boolean report(int kind, MemorySegment payload) {
            return given.add(new Given(kind, payload));
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            throw new AssertionError("verbs sends no descriptors");
        }
    }

    /** Remembers what the target's end says of itself. */
    static final class TargetChannel implements InboundChannel {
        final Deque<Given> given = new ArrayDeque<>();
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
        public boolean report(int kind, MemorySegment payload) {
            return given.add(new Given(kind, payload));
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            throw new AssertionError("verbs sends no descriptors");
        }
    }
}
