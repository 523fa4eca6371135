package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.EngineEndedException;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * The transfer engine. Its methods run on the messenger's thread and hand work to the workers.
 *
 * <p>Each peer's writes belong to one worker, and so do each admission's arrivals: their state is confined to that
 * worker. State shared by all workers (regions, windows, admissions) is changed by the messenger's thread only, except
 * for the weight that has arrived for a window, which any worker may increase.
 */
final class HostTransferEngine implements TransferEngine {
    private static final String WORKER_NAME = "kvm-transfer";

    private final EnginePorts ports;
    private final RegionTable regions;
    private final WindowTable windows;
    private final BooleanSupplier pollable = this::isPollable;
    /** Of the latest poll: completions are passed on to it. */
    private CompletionHandler polledBy;

    private final WorkerRunner runner;
    private final DomainGroups domainGroups;
    private final EngineAddress address;
    private final LiveAdmissions admissions;
    private final LivePeers peers;
    private final GroupPosts groupPosts = new GroupPosts();
    private final ReadDesk readDesk = new ReadDesk(new Reading());
    private final Reads reads;
    private volatile Throwable bug;
    private int requestsInFlight;
    private long backPressured;
    private String refusal = "";
    private boolean closed;

    HostTransferEngine(EngineLimits limits, EnginePorts ports, WorkerRunner.Factory runners) {
        this.ports = ports;
        regions = new RegionTable(ports.libC(), ports.devices());
        windows = new WindowTable(limits, this::letGo);
        reads = new Reads(windows.counters());
        List<Worker> workers = workers(ports.workers());
        runner = runners.make(workers, this::onBug);
        domainGroups = new DomainGroups(limits, ports, workers, runner::onCompletion, windows, regions, this::dispatch);
        admissions = new LiveAdmissions(domainGroups, ports.random());
        peers = new LivePeers(limits, domainGroups, regions, ports.clock());
        address = new EngineAddress(domainGroups.first().domains().stream()
                .map(domain -> new TransportAddress(domain.name(), domain.location()))
                .toList());
        regions.use(domainGroups.domains());
        start();
    }

    private static List<Worker> workers(List<WorkerPorts> ports) {
        return IntStream.range(0, ports.size())
                .mapToObj(i -> new Worker(
                        i == 0 ? WORKER_NAME : WORKER_NAME + "-" + (i + 1),
                        ports.get(i).poller()))
                .toList();
    }

    private void start() {
        try {
            runner.start();
        } catch (RuntimeException | Error e) {
            domainGroups.release();
            throw e;
        }
    }

    private void onBug(Throwable error) {
        bug = error;
        runner.wake();
    }

    private boolean isPollable() {
        return bug != null || domainGroups.waiting() > 0 || groupPosts.hasUnsent() || readDesk.hasNews();
    }

    @Override
    public EngineAddress address() {
        return address;
    }

    @Override
    public List<String> unavailable() {
        return domainGroups.first().unavailable();
    }

    /** One worker's notes represent all: workers differ only if one was refused what another obtained. */
    @Override
    public List<String> notes() {
        Stream<String> ofDomains = domainGroups.domains().stream().flatMap(domain -> domain.notes().stream());
        Stream<String> others =
                Stream.of(ports.devices().notes(), ports.sharing().notes()).flatMap(List::stream);
        return Stream.concat(ofDomains, others).distinct().toList();
    }

    @Override
    public Region register(Memory memory) {
        return regions.add(memory);
    }

    @Override
    public Admission admit(String peerName) {
        return admissions.admit(peerName);
    }

    @Override
    public void revoke(Admission admission) {
        admissions.revoke(admission);
    }

    @Override
    public void revokeUnused(Admission admission) {
        admissions.revokeUnused(admission);
    }

    @Override
    public Peer connect(EngineAddress target, byte[] admissionKey, String peerName) {
        return peers.connect(target, admissionKey, peerName);
    }

    @Override
    public void disconnect(Peer peer) {
        peers.disconnect((OutboundPeer) peer);
    }

    @Override
    public RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass) {
        return ((OutboundPeer) peer).allowances().allow(imm, area, trafficClass);
    }

    @Override
    public void disallow(Peer peer, RemoteWindow window) {
        ((OutboundPeer) peer).allowances().disallow(window);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        OutboundPeer outbound = (OutboundPeer) peer;
        DomainGroup domainGroup = domainGroupOf(outbound);
        if (domainGroup == null) {
            return PEER_LOST;
        }
        if (!outbound.hasRoom(request.trafficClass()) || !completionsHaveRoom(1)) {
            backPressured++;
            return BACK_PRESSURE;
        }
        String why = outbound.refusal(request);
        if (why != null) {
            refusal = why;
            return REFUSED;
        }
        outbound.offer(request, cookie, WriteLedger.OF_USER);
        requestsInFlight++;
        domainGroup.worker().wake();
        return ACCEPTED;
    }

    @Override
    public PeerGroup group(String name, List<Peer> members) {
        for (Peer member : members) {
            if (!(member instanceof OutboundPeer outbound) || peers.groupOf(outbound) == null) {
                throw new IllegalArgumentException(
                        member.name() + " cannot be in group " + name + ": it is no live peer of this engine");
            }
        }
        return new OutboundGroup(
                name, members.stream().map(OutboundPeer.class::cast).toList());
    }

    @Override
    public int submit(PeerGroup group, GroupRequest request, long cookie) {
        OutboundGroup members = (OutboundGroup) group;
        if (closed || bug != null) {
            return PEER_LOST;
        }
        if (!groupPosts.hasRoom() || !members.hasRoom(request) || !completionsHaveRoom(members.size())) {
            backPressured++;
            return BACK_PRESSURE;
        }
        String why = members.refusal(request);
        if (why != null) {
            refusal = why;
            return REFUSED;
        }
        requestsInFlight += groupPosts.begin(members, request, cookie);
        domainGroups.wake();
        return ACCEPTED;
    }

    /** Null when the peer is gone. */
    private DomainGroup domainGroupOf(OutboundPeer peer) {
        return closed || bug != null || peer.isLost() ? null : peers.groupOf(peer);
    }

    /** Waits until no worker holds a half-received write for a closed window. Short, since workers never block. */
    private void letGo(OpenWindow window) {
        domainGroups.letGo(window);
        while (((Window) window).isLanding() && runner.isRunning()) {
            runner.yieldToWorkers();
        }
    }

    /**
     * Whether {@code more} further events fit: all that can still happen, together with the events that wait to be
     * polled, must fit into the ring of any worker.
     */
    private boolean completionsHaveRoom(int more) {
        int half = domainGroups.ringCapacity() / 2;
        int possible = requestsInFlight
                + 2 * windows.openCount()
                + reads.openParts()
                + 3 * peers.count()
                + 2 * admissions.count();
        return possible <= half - more && domainGroups.waiting() < half;
    }

    @Override
    public String refusal() {
        return refusal;
    }

    @Override
    public int send(Peer peer, MemorySegment message) {
        OutboundPeer outbound = (OutboundPeer) peer;
        DomainGroup domainGroup = domainGroupOf(outbound);
        if (domainGroup == null) {
            return PEER_LOST;
        }
        if (message.byteSize() > MESSAGE_MAX_BYTES) {
            refusal = "a message of " + message.byteSize() + " bytes, at most " + MESSAGE_MAX_BYTES;
            return REFUSED;
        }
        if (!outbound.messages().offer(message)) {
            backPressured++;
            return BACK_PRESSURE;
        }
        outbound.rest().stir();
        domainGroup.worker().wake();
        return ACCEPTED;
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        DomainGroup writtenBy = admissions.groupOf(from);
        if (writtenBy == null) {
            throw new IllegalArgumentException("the admission of " + from.peerName() + " has ended");
        }
        if (expectedWeight < 1) {
            throw new IllegalArgumentException("expected weight is " + expectedWeight + ", expected at least 1");
        }
        List<RegisteredRegion> hosts = area.parts().stream()
                .map(part -> regions.require(part.region()))
                .toList();
        ImmWindow opened = completionsHaveRoom(1) ? windows.open(from, hosts, area, expectedWeight, cookie) : null;
        writtenBy.worker().wake(); // it may sleep for long while no window is open
        return opened;
    }

    @Override
    public ReadWindow openForReading(Peer reader, WindowArea area, long cookie) {
        List<RegisteredRegion> hosts = area.parts().stream()
                .map(part -> regions.require(part.region()))
                .toList();
        return readDesk.open(reader, hosts, area, ports.random().nextLong(), cookie);
    }

    @Override
    public int read(Admission owner, ReadRequest request, long cookie) {
        DomainGroup domainGroup = closed || bug != null ? null : admissions.groupOf(owner);
        InboundAdmission entry =
                domainGroup == null ? null : domainGroup.inboundWrites().entryOf(owner);
        if (entry == null) {
            return PEER_LOST;
        }
        if (!reads.hasRoom(owner) || !completionsHaveRoom(1 + Reads.PARTS_MAX)) {
            backPressured++;
            return BACK_PRESSURE;
        }
        WindowArea area;
        try {
            area = Reads.areaOf(request, regions);
        } catch (IllegalArgumentException e) {
            refusal = e.getMessage();
            return REFUSED;
        }
        List<RegisteredRegion> target = List.of((RegisteredRegion) request.target());
        Window window = windows.open(owner, target, area, request.targetPages().count(), cookie);
        if (window == null) {
            backPressured++;
            return BACK_PRESSURE;
        }
        reads.begin(request, entry, window, cookie);
        domainGroup.worker().wake();
        return ACCEPTED;
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        if (domainGroups.waiting() == 0) {
            runner.advance();
        }
        if (bug != null && !runner.isRunning()) { // it ended all paths before it stopped
            requireMore(bug);
        }
        requestsInFlight += readDesk.serveWaiting();
        int reported = groupPosts.reportUnsent(handler, limit);
        reported += readDesk.reportClosed(handler, limit - reported);
        polledBy = handler;
        return reported + domainGroups.drain(limit - reported);
    }

    /** Throws once all events from before the workers' end have been passed on. */
    private void requireMore(Throwable ended) {
        domainGroups.closeUnused("this engine has ended by an error of its own");
        if (domainGroups.waiting() == 0) {
            throw new EngineEndedException(ended);
        }
    }

    @Override
    public void await(long limitNs) {
        if (limitNs > 0) {
            runner.await(limitNs, pollable);
        }
    }

    @Override
    public void wake() {
        runner.wake();
    }

    private void dispatch(DomainGroup at, int kind, long cookie, long value, Object subject, String detail) {
        CompletionHandler handler = polledBy;
        switch (kind) {
            case CompletionRing.WRITE_COMPLETED -> {
                requestsInFlight--;
                onCompleted(handler, (int) value, cookie);
            }
            case CompletionRing.WRITE_FAILED -> {
                requestsInFlight--;
                onFailed(handler, (int) value, cookie, (TransferFault) subject, detail);
            }
            case CompletionRing.WINDOW_FILLED -> {
                Window window = (Window) subject;
                if (!window.isClosed() && !reads.onFilled(handler, window)) {
                    handler.onWindowFilled(window.cookie);
                }
            }
            case CompletionRing.WINDOW_OVERSHOT -> {
                Window window = (Window) subject;
                if (!window.isClosed() && !reads.onOvershot(handler, window, value)) {
                    handler.onWindowOvershot(window.cookie, value, window.expectedWeight);
                }
            }
            case CompletionRing.PEER_READY -> handler.onPeerReady((Peer) subject);
            case CompletionRing.PEER_LOST -> {
                OutboundPeer.Loss loss = (OutboundPeer.Loss) subject;
                peers.disconnect(loss.peer());
                handler.onPeerLost(loss.peer(), loss.fault(), detail);
            }
            case CompletionRing.ADMISSION_CLOSED -> {
                Admission admission = (Admission) subject;
                admissions.onClosed(admission);
                windows.onAdmissionClosed(admission);
                reads.onAdmissionClosed(handler, admission, detail);
                handler.onAdmissionClosed(admission, detail);
            }
            case CompletionRing.WRITE_REFUSED -> handler.onWriteRefused((Admission) subject, detail);
            case CompletionRing.MESSAGE -> handOver(handler, at, (Admission) subject);
            case CompletionRing.READ_ASKED -> {
                ((OutboundPeer) subject).hearAsked();
                requestsInFlight += readDesk.onAsked((OutboundPeer) subject);
            }
            case CompletionRing.READ_ENDED -> {
                InboundWrites.Answered answered = (InboundWrites.Answered) subject;
                if (reads.onAnswer(handler, answered.from(), answered.answer())) {
                    at.worker().wake();
                }
            }
            default -> throw new AssertionError("completion of kind " + kind);
        }
    }

    /** Passes on the oldest message; its slot is freed afterwards, whatever the handler throws. */
    private static void handOver(CompletionHandler handler, DomainGroup at, Admission from) {
        try {
            handler.onMessage(from, at.inboundWrites().messages().peek());
        } finally {
            if (at.inboundWrites().releaseMessage()) {
                at.worker().wake();
            }
        }
    }

    private void onCompleted(CompletionHandler handler, int origin, long cookie) {
        switch (origin) {
            case WriteLedger.OF_GROUP -> groupPosts.onCompleted(handler, cookie);
            case WriteLedger.OF_READ -> readDesk.onPartEnded(cookie, true);
            default -> handler.onWriteCompleted(cookie);
        }
    }

    private void onFailed(CompletionHandler handler, int origin, long cookie, TransferFault fault, String detail) {
        switch (origin) {
            case WriteLedger.OF_GROUP -> groupPosts.onFailed(handler, cookie, fault, detail);
            case WriteLedger.OF_READ -> readDesk.onPartEnded(cookie, false);
            default -> handler.onWriteFailed(cookie, fault, detail);
        }
    }

    /** What the {@link ReadDesk} needs of this engine. */
    private final class Reading implements ReadDesk.Engine {
        @Override
        public boolean hasRoom() {
            return completionsHaveRoom(1);
        }

        @Override
        public void wake(OutboundPeer peer) {
            peers.wake(peer);
        }

        @Override
        public void lose(OutboundPeer peer, String detail) {
            peers.lose(peer, detail);
        }
    }

    private long runsCopiedByKernel() {
        return ports.devices().runsCopiedByKernel()
                + domainGroups.domains().stream()
                        .mapToLong(Domain::runsCopiedByKernel)
                        .sum();
    }

    @Override
    public TransferCounters counters() {
        return new TransferCounters(
                counter -> switch (counter) {
                    case BACK_PRESSURED -> backPressured;
                    case WINDOWS_OPEN -> windows.openCount();
                    case REGIONS_OPEN -> regions.count();
                    case REQUESTS_IN_FLIGHT -> requestsInFlight;
                    case RUNS_BY_KERNEL -> runsCopiedByKernel();
                    default -> domainGroups.figure(counter);
                },
                address.transports().stream().map(TransportAddress::transport).toList(),
                domainGroups::figure);
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            runner.end();
            domainGroups.release();
            ports.devices().close();
        }
    }
}
