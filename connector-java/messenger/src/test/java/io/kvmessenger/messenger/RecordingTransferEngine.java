package io.kvmessenger.messenger;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineEndedException;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/** Moves nothing: keeps what was asked, and completes what the test says. */
public final class RecordingTransferEngine implements TransferEngine {
    final ArrayDeque<Consumer<CompletionHandler>> completions = new ArrayDeque<>();
    public final List<Long> submitted = new ArrayList<>();
    public final List<TransferRequest> requests = new ArrayList<>();
    final List<Admission> revoked = new ArrayList<>();
    final List<Admission> revokedIfUnused = new ArrayList<>();
    final List<Peer> connected = new ArrayList<>();
    final List<Peer> disconnected = new ArrayList<>();
    final List<Long> windowCookies = new ArrayList<>();
    final List<Long> windowWeights = new ArrayList<>();
    final List<WindowArea> windowAreas = new ArrayList<>();
    int freeSlots = 8;
    /** All windows have the same immediate. */
    boolean repeatsImm;
    /** A write that begins with it meets a bug. */
    int poisonedPage = -1;

    /** Set by a test: so many submits from now on are refused for back pressure. */
    int backPressured;

    /** Set by a test: the engine has ended by this error. */
    Throwable bug;
    /** Set by a test: thrown by each {@code submit} until it is null. */
    RuntimeException bugOfSubmit;
    /** The classes of the windows that were allowed. */
    public final List<TrafficClass> allowed = new ArrayList<>();

    /** Set by a test: thrown by the next {@code allow}. */
    RuntimeException bugOfAllow;

    RuntimeException bugOfOpenWindow;

    /** Where submitted writes land and count at once; null while they are on their way. */
    RecordingTransferEngine landsIn;

    private final Map<Integer, Long> arrivedWeights = new HashMap<>();
    final List<Admission> admitted = new ArrayList<>();
    private int lastSlot;
    private int lastRegionId;

    /** Windows that are open and have not been reported as filled. */
    private final List<Window> filling = new ArrayList<>();

    /** A window that closes. */
    private final class Window implements ImmWindow {
        private final int imm;
        private final long expectedWeight;
        private final long cookie;

        Window(int imm, long expectedWeight, long cookie) {
            this.imm = imm;
            this.expectedWeight = expectedWeight;
            this.cookie = cookie;
        }

        @Override
        public int imm() {
            return imm;
        }

        @Override
        public long arrivedWeight() {
            return arrivedWeights.getOrDefault(imm, 0L);
        }

        @Override
        public long expectedWeight() {
            return expectedWeight;
        }

        @Override
        public void close(boolean drained) {
            filling.remove(this);
            freeSlots++;
        }
    }

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    private record Allowed(int imm) implements RemoteWindow {}

    private record Neighbour(int id, String name) implements Peer {
        @Override
        public String transport() {
            return "recording";
        }
    }

    @Override
    public EngineAddress address() {
        return new EngineAddress(List.of());
    }

    @Override
    public Region register(Memory memory) {
        return new Registered(
                new RegionDescriptor(++lastRegionId, memory.lengthBytes(), RegionDescriptor.VERSION, false), memory);
    }

    @Override
    public Admission admit(String peerName) {
        admitted.add(new Admission(admitted.size() + 1, peerName, new byte[Admission.KEY_LENGTH_BYTES]));
        return admitted.getLast();
    }

    @Override
    public void revoke(Admission admission) {
        revoked.add(admission);
    }

    /** Every peer has opened its data paths. */
    @Override
    public void revokeUnused(Admission admission) {
        revokedIfUnused.add(admission);
    }

    @Override
    public Peer connect(EngineAddress address, byte[] admissionKey, String peerName) {
        Peer peer = new Neighbour(connected.size() + 1, peerName);
        connected.add(peer);
        completions.add(handler -> handler.onPeerReady(peer));
        return peer;
    }

    @Override
    public void disconnect(Peer peer) {
        disconnected.add(peer);
    }

    @Override
    public RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass) {
        if (bugOfAllow != null) {
            throw bugOfAllow;
        }
        allowed.add(trafficClass);
        return new Allowed(imm);
    }

    @Override
    public void disallow(Peer peer, RemoteWindow window) {}

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        if (bugOfSubmit != null) {
            throw bugOfSubmit;
        }
        if (request instanceof TransferRequest.PagedWrites writes
                && writes.sourcePages().indices()[0] == poisonedPage) {
            throw new IllegalStateException("a bug");
        }
        if (backPressured > 0) {
            backPressured--;
            return BACK_PRESSURE;
        }
        submitted.add(cookie);
        requests.add(request);
        if (landsIn != null) {
            landsIn.land(request);
        }
        return ACCEPTED;
    }

    /** A peer's write has landed here and counts. */
    void land(TransferRequest request) {
        long count =
                request instanceof PagedWrites writes ? writes.sourcePages().count() : 1;
        arrivedWeights.merge(request.window().imm(), request.weight() * count, Long::sum);
    }

    @Override
    public PeerGroup group(String name, List<Peer> members) {
        throw new UnsupportedOperationException("a messenger writes to one peer at a time");
    }

    @Override
    public int submit(PeerGroup group, GroupRequest request, long cookie) {
        throw new UnsupportedOperationException("a messenger writes to one peer at a time");
    }

    @Override
    public ReadWindow openForReading(Peer reader, WindowArea area, long cookie) {
        throw new UnsupportedOperationException("a messenger's peers do not read");
    }

    @Override
    public int read(Admission owner, ReadRequest request, long cookie) {
        throw new UnsupportedOperationException("a messenger does not read");
    }

    @Override
    public String refusal() {
        return "";
    }

    @Override
    public int send(Peer peer, MemorySegment message) {
        return REFUSED;
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        if (bugOfOpenWindow != null) {
            throw bugOfOpenWindow;
        }
        if (freeSlots == 0) {
            return null;
        }
        freeSlots--;
        windowCookies.add(cookie);
        windowWeights.add(expectedWeight);
        windowAreas.add(area);
        int slot = repeatsImm ? 1 : ++lastSlot;
        Window window = new Window(Imm.of(slot, 0), expectedWeight, cookie);
        filling.add(window);
        return window;
    }

    /** Reports the windows that have everything, as an engine does by itself. Returns their number. */
    int reportFilled() {
        List<Window> filled = filling.stream()
                .filter(window -> window.arrivedWeight() == window.expectedWeight())
                .toList();
        filling.removeAll(filled);
        filled.forEach(window -> completions.add(handler -> handler.onWindowFilled(window.cookie)));
        return filled.size();
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        int count = 0;
        for (Optional<Consumer<CompletionHandler>> next = Optional.ofNullable(completions.poll());
                next.isPresent();
                next = Optional.ofNullable(completions.poll())) {
            next.get().accept(handler);
            count++;
        }
        if (bug != null && count == 0) {
            throw new EngineEndedException(bug);
        }
        return count;
    }

    @Override
    public void await(long limitNs) {
        throw new AssertionError("only a thread waits, and there is none here");
    }

    @Override
    public void wake() {
        throw new AssertionError("await is not expected here");
    }

    @Override
    public TransferCounters counters() {
        throw new UnsupportedOperationException("nothing is counted");
    }

    @Override
    public void close() {}
}
