package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;

/**
 * Workers with peers of all classes on one link of 1 Gb/s, which divides itself evenly among the sockets that have bytes
 * for it. The production classes decide what each socket is given; this one has the link, the time and the writes.
 *
 * <p>Bulk never ends; urgent writes come in bursts. It checks that an urgent write is not later than by what had been
 * committed before it, and the others' share; that the others get their share; and that the link is not left idle.
 */
final class SharedLinkSimulation {
    /** What a wiring of the classes might leave out. */
    enum Fault {
        URGENT_NOT_REPORTED,
        FRAMES_NOT_PACED,
        UNSENT_NOT_LIMITED,
        OTHERS_STARVED
    }

    private static final List<TrafficClass> CLASSES = List.of(TrafficClass.values());
    private static final double SHARE = 0.2;
    private static final long TICK_NS = 100_000;
    private static final int TICKS = 30_000;
    private static final long LINK_BYTES = 12_500;
    /** Until the link's rate is known, and bulk has committed what it commits. */
    private static final int LEARN_TICKS = 8_000;
    /** Beside exact shares: rates are estimated, and frames end late. */
    private static final double SLACK = 1.35;

    /** What one peer has in its socket, at least, and a step of it. */
    private static final long COMMITTED_MIN_BYTES = PathLink.SLICE_MIN_BYTES + SimulatedLinkPath.STEP_BYTES;

    private static final int WORKERS_MAX = 3;
    private static final int PEERS_MAX = 3;
    private static final int BULK_BYTES = 4 << 20;
    private static final int URGENT_MAX_BYTES = 8 << 20;
    private static final int PAGE_BYTES = 64 << 10;
    private static final int REQUESTS_MAX = 16;
    private static final RegionDescriptor REGION =
            new RegionDescriptor(1, URGENT_MAX_BYTES, RegionDescriptor.VERSION, false);

    private static final OutboundPeerBed.Registered SOURCE =
            new OutboundPeerBed.Registered(REGION, Memory.host(MemorySegment.ofArray(new byte[URGENT_MAX_BYTES])));

    /** @param dueTick when it has to be over, or never */
    private record Written(TrafficClass trafficClass, long lengthBytes, long dueTick) {}

    private final class Peer implements WriteLedger.Completions {
        final PeerWrites writes = new PeerWrites(REQUESTS_MAX, this);
        final PeerLoad load = new PeerLoad(writes);
        final SimulatedLinkPath path = new SimulatedLinkPath(
                faults.contains(Fault.FRAMES_NOT_PACED), faults.contains(Fault.UNSENT_NOT_LIMITED));
        final PathLink link;
        final LinkLoad linkLoad;
        final TrafficClass trafficClass;
        final WriteBatch batch = new WriteBatch();

        Peer(LinkLoad linkLoad, TrafficClass trafficClass) {
            this.linkLoad = linkLoad;
            this.trafficClass = trafficClass;
            link = new PathLink(path, linkLoad);
        }

        void cycle() {
            boolean reports = trafficClass != TrafficClass.URGENT || !faults.contains(Fault.URGENT_NOT_REPORTED);
            load.report(reports ? List.of(linkLoad) : List.of(), nowNs);
            if (load.slowest() != TrafficClass.URGENT) {
                linkLoad.look(nowNs);
            }
            link.pace(load.slowest(), load.isMixed(), 1, nowNs);
            boolean starved = faults.contains(Fault.OTHERS_STARVED) && linkLoad.isContended(trafficClass);
            while (!starved && writes.next(batch, link) && path.post(batch, writes.nextPostId()) > 0) {
                writes.posted(batch, path);
                link.onPosted(writes.offered(), batch.payloadBytes());
                path.handOver();
            }
            batch.clear();
            if (!starved) {
                path.handOver();
            }
        }

        void collect() {
            for (long sent = path.nextSent(); sent >= 0; sent = path.nextSent()) {
                writes.sent(sent);
            }
        }

        @Override
        public void onCompleted(int origin, long cookie) {
            completed(cookie);
        }

        @Override
        public void onFailed(int origin, long cookie, TransferFault fault, String detail) {
            throw new AssertionError(detail);
        }
    }

    private final Set<Fault> faults;
    private final Random random;
    private final List<Peer> peers = new ArrayList<>();
    private final Map<Long, Written> underWay = new HashMap<>();
    private final long[] completedCounts = new long[TrafficClass.COUNT];
    private final List<String> violations = new ArrayList<>();
    private long nowNs = 1;
    private int tick;
    private long cookies;
    private long urgentBytes;
    /** Since the link's rate is known: ticks in which urgent bytes waited, and what the link took of others in them. */
    private long contendedTicks;

    private long othersBytes;
    private long idleBytes;

    SharedLinkSimulation(long seed, Set<Fault> faults) {
        this.faults = faults;
        random = new Random(seed);
        LinkBoard board = LinkBoard.ofEngine();
        int workers = 1 + random.nextInt(WORKERS_MAX);
        for (int worker = 0; worker < workers; worker++) {
            LinkLoad load = new LinkLoad(board, 1, SHARE, nowNs);
            int count = 1 + random.nextInt(PEERS_MAX);
            for (int i = 0; i < count; i++) {
                peers.add(new Peer(load, CLASSES.get(random.nextInt(CLASSES.size()))));
            }
            if (worker == 0) {
                peers.add(new Peer(load, TrafficClass.URGENT));
                peers.add(new Peer(load, TrafficClass.BULK));
            }
        }
    }

    void run() {
        for (tick = 0; tick < TICKS; tick++) {
            peers.forEach(this::write);
            peers.forEach(Peer::cycle);
            carry();
            peers.forEach(Peer::collect);
            nowNs += TICK_NS;
        }
        underWay.values().stream()
                .filter(each -> each.dueTick < tick)
                .forEach(each -> violations.add("never: " + each));
        long waited = contendedTicks * LINK_BYTES;
        if (othersBytes < SHARE * waited / SLACK) {
            violations.add("the others got " + othersBytes + " of " + waited + " bytes beside urgent ones");
        }
        if (idleBytes > LINK_BYTES * (TICKS / 100)) {
            violations.add("the link could have taken " + idleBytes + " bytes more");
        }
    }

    List<String> violations() {
        return violations;
    }

    long completedCount(TrafficClass trafficClass) {
        return completedCounts[trafficClass.rank()];
    }

    /** Bulk always has writes, and urgent ones come now and then, once bulk holds what it can. */
    private void write(Peer peer) {
        boolean urgent = peer.trafficClass == TrafficClass.URGENT;
        if (!urgent && peer.writes.hasRoom(peer.trafficClass)) {
            offer(peer, BULK_BYTES, Long.MAX_VALUE);
        } else if (urgent && tick > LEARN_TICKS && urgentBytes == 0 && random.nextInt(300) == 0) {
            long lengthBytes = (1L + random.nextInt(URGENT_MAX_BYTES / PAGE_BYTES)) * PAGE_BYTES;
            double alone = (double) lengthBytes / LINK_BYTES;
            double beside = alone / (1 - SHARE * (TrafficClass.COUNT - 1)) * SLACK;
            offer(peer, lengthBytes, tick + (long) (beside + committedTicks()) + 2);
        }
    }

    /** Bound of what all others may have committed, of each class. */
    private double committedTicks() {
        long othersCount = peers.stream()
                .filter(peer -> peer.trafficClass != TrafficClass.URGENT)
                .count();
        double aheadTicks = (double) (TrafficClass.COUNT - 1) * LinkLoad.AHEAD_NS / TICK_NS;
        return SLACK * (aheadTicks + (double) othersCount * COMMITTED_MIN_BYTES / LINK_BYTES);
    }

    private void offer(Peer peer, long lengthBytes, long dueTick) {
        ClassedWindow window = new ClassedWindow(peer.trafficClass);
        TransferRequest write = peer.trafficClass == TrafficClass.URGENT
                ? pages((int) (lengthBytes / PAGE_BYTES), window)
                : new SingleWrite(SOURCE, 0, REGION, 0, lengthBytes, window, 1);
        underWay.put(++cookies, new Written(peer.trafficClass, lengthBytes, dueTick));
        urgentBytes += peer.trafficClass == TrafficClass.URGENT ? lengthBytes : 0;
        peer.writes.offer(write, cookies, WriteLedger.OF_USER);
    }

    private static TransferRequest pages(int count, ClassedWindow window) {
        PageList list = new PageList(new int[count], 0, count, PAGE_BYTES, 0);
        return new PagedWrites(SOURCE, list, REGION, list, PAGE_BYTES, window, 1);
    }

    private void completed(long cookie) {
        Written written = underWay.remove(cookie);
        completedCounts[written.trafficClass.rank()]++;
        if (written.trafficClass == TrafficClass.URGENT) {
            urgentBytes -= written.lengthBytes;
        }
        if (tick > written.dueTick) {
            violations.add("late by " + (tick - written.dueTick) + " ticks: " + written);
        }
    }

    /** The link takes as much as it can, the same of each socket that has bytes for it. */
    private void carry() {
        boolean contended = urgentBytes > 0 && tick > LEARN_TICKS;
        contendedTicks += contended ? 1 : 0;
        long roomBytes = LINK_BYTES;
        for (List<Peer> waiting = waiting(); roomBytes > 0 && !waiting.isEmpty(); waiting = waiting()) {
            long each = Math.max(1, roomBytes / waiting.size());
            for (Peer peer : waiting) {
                long bytes = Math.min(Math.min(each, roomBytes), peer.path.waitingBytes());
                peer.path.take(bytes);
                roomBytes -= bytes;
                othersBytes += contended && peer.trafficClass != TrafficClass.URGENT ? bytes : 0;
            }
        }
        idleBytes += roomBytes;
    }

    private List<Peer> waiting() {
        return peers.stream().filter(peer -> peer.path.waitingBytes() > 0).toList();
    }
}
