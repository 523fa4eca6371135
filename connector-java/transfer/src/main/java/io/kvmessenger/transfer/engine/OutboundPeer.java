package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.link.LinkEvents;
import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.link.OutboundLink;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.GatheredWrites;
import io.kvmessenger.transfer.staging.Staging;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.LongSupplier;

/**
 * A peer that this engine writes to: its queues, its link, and its loss.
 *
 * <p>The messenger's thread fills the queues; everything else is the worker's. Writes go to the paths of the domain that
 * {@link PeerDomains} chooses: the next slice to one with room, and what a lost path had to the others. The peer is lost
 * with its link, or when no domain is left. It chooses no domain.
 */
final class OutboundPeer
        implements Peer, LinkEvents, PeerDomains.Owner, PeerDomain.Posts, WriteLedger.Completions, PathSpread.Posting {
    /** Bytes that one duty cycle may post to a path before other peers are served. */
    static final long TURN_BYTES = 2 << 20;

    private static final int MESSAGES_MAX = 16;

    /**
     * The peer's address, and the means to reach it.
     *
     * @param domains this engine's, in order of preference
     * @param staging gathers device memory for domains that do not reach it
     * @param loads of the links that this worker's paths take
     */
    record Target(
            EngineAddress address,
            byte[] admissionKey,
            Links links,
            List<Domain> domains,
            Staging staging,
            LinkLoads loads) {}

    /** Why a peer is lost; writes submitted before the loss was visible fail with it too. */
    record Loss(OutboundPeer peer, TransferFault fault, String detail) {}

    /** What is owed of a loss until devices have finished reading what was to be written. */
    private enum Owed {
        NOTHING,
        /** The writes fail. */
        WRITES,
        /** The writes fail, and the messenger is informed. */
        WRITES_AND_REPORT
    }

    private final int id;
    private final String name;
    private final Target target;
    private final CompletionRing completions;
    private final LongSupplier clock;
    private final PeerWrites writes;
    private final PeerLoad load;
    private final SendRate rate;
    private final MessageQueue messages = new MessageQueue(MESSAGES_MAX);
    /** The peer's read requests. */
    private final MessageQueue asked = new MessageQueue(InboundAdmission.READS_ASKED_MAX);

    private final AtomicBoolean askedReported = new AtomicBoolean();
    /** Results of the peer's reads, to be sent to it. */
    private final MessageQueue answers = new MessageQueue(InboundAdmission.READS_ASKED_MAX);

    private final PeerRest rest;
    private final PeerDomains domains;
    private final PageLimit pageLimit;
    private final WriteBatch batch = new WriteBatch();
    /** Null until device memory is posted to a path that does not reach it. */
    private GatheredWrites gathered;

    private final Allowances allowances;
    /** Null while the peer is not lost. */
    private volatile Loss loss;

    private Owed owed = Owed.NOTHING;
    private boolean forgotten;
    private OutboundLink link;
    private int firstPath;

    OutboundPeer(
            int id,
            String name,
            Target target,
            int requestsMax,
            Allowances allowances,
            CompletionRing completions,
            Figures figures,
            LongSupplier clock) {
        this.id = id;
        this.name = name;
        this.target = target;
        this.completions = completions;
        this.clock = clock;
        this.allowances = allowances;
        pageLimit = new PageLimit(target.staging.limits().pageMaxBytes());
        writes = new PeerWrites(requestsMax, this);
        rest = new PeerRest(writes, messages, answers);
        load = new PeerLoad(writes);
        domains = new PeerDomains(clock, this);
        for (Domain domain : target.domains) {
            for (TransportAddress offered : target.address.transports()) {
                if (offered.transport().equals(domain.name())) {
                    Figures own = figures.ofTransport(domain.name());
                    domains.add(new PeerDomain(domain, own, offered.location(), writes, domains, this));
                    pageLimit.add(domain);
                }
            }
        }
        rate = new SendRate(clock);
    }

    @Override
    public int id() {
        return id;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public String transport() {
        return domains.transport();
    }

    @Override
    public long queuedBytes() {
        return writes.queuedBytes();
    }

    @Override
    public double bytesPerSecond() {
        return rate.bytesPerSecond();
    }

    /** Messenger's thread: whether {@link #offer} of such a write will succeed. */
    boolean hasRoom(TrafficClass trafficClass) {
        return writes.hasRoom(trafficClass);
    }

    /**
     * Messenger's thread: queues a write, after {@link #hasRoom} and the check of its length. All writes pass here.
     *
     * @param origin whose the cookie is, of {@link WriteLedger}
     */
    void offer(TransferRequest request, long cookie, int origin) {
        pageLimit.require(request);
        if (!writes.offer(request, cookie, origin)) {
            throw new AssertionError("a write was queued without room for it");
        }
        rest.stir();
    }

    PeerRest rest() {
        return rest;
    }

    MessageQueue messages() {
        return messages;
    }

    /** The peer's read requests, for the messenger's thread. */
    MessageQueue asked() {
        return asked;
    }

    /** Messenger's thread, before it looks at {@link #asked}. */
    void hearAsked() {
        askedReported.getAndSet(false);
    }

    MessageQueue answers() {
        return answers;
    }

    Allowances allowances() {
        return allowances;
    }

    /** Messenger's thread: why the request may not be submitted, or null. */
    String refusal(TransferRequest request) {
        String refusal = allowances.refusal(request);
        return refusal == null ? lengthRefusal(request) : refusal;
    }

    /** Messenger's thread: why a page of the request is too long to be queued, or null. */
    String lengthRefusal(TransferRequest request) {
        return pageLimit.refusal(request);
    }

    boolean isLost() {
        return loss != null;
    }

    /** Messenger's thread: no more is submitted for this peer. */
    void forget() {
        forgotten = true;
    }

    /** Messenger's thread: whether any further submit would fail. */
    boolean isGone() {
        return isLost() || forgotten;
    }

    /** Worker: starts to connect. */
    void connect(long nowNs) {
        if (domains.isEmpty()) {
            fail(
                    TransferFault.UNREACHABLE,
                    "no transport in common with " + name + ": " + TransferOptions.OTHER_TRANSPORT);
            return;
        }
        try {
            link = target.links.connect(target.address, target.admissionKey, this, nowNs);
        } catch (IllegalArgumentException | IllegalStateException e) {
            fail(TransferFault.UNREACHABLE, e.getMessage());
        } catch (RuntimeException | Error error) {
            fail(TransferFault.UNREACHABLE, LinkError.describe(error));
        }
    }

    @Override
    public void onOpened() {
        domains.open(link);
    }

    @Override
    public boolean onAsked(MemorySegment payload) {
        if (payload.byteSize() > ReadAsk.LENGTH_MAX_BYTES || !asked.offer(payload)) {
            return false;
        }
        if (!askedReported.getAndSet(true)) {
            completions.push(CompletionRing.READ_ASKED, 0, 0, this, null);
        }
        return true;
    }

    @Override
    public void onLost(TransferFault fault, String detail) {
        if (!isLost()) {
            fail(fault, detail);
        }
    }

    @Override
    public void onReady() {
        completions.push(CompletionRing.PEER_READY, 0, 0, this, null);
    }

    @Override
    public void onUnreachable(TransferFault fault, String detail) {
        fail(fault, detail);
    }

    @Override
    public void onPathLost(Endpoint path) {
        if (gathered != null) {
            gathered.onPathLost(path);
        }
    }

    @Override
    public boolean isGathering(Endpoint path) {
        return gathered != null && gathered.isGathering(writes.oldestPost(path));
    }

    @Override
    public LinkLoad linkOf(Domain domain, Endpoint path) {
        return target.loads.of(domain, path, clock.getAsLong());
    }

    @Override
    public PathSpread spread(PeerDomain peerDomain) {
        return new PathSpread(this, peerDomain.figures(), clock);
    }

    @Override
    public void onSent(long postId) {
        if (gathered != null) {
            gathered.onSent(postId);
        }
        writes.sent(postId);
    }

    private void fail(TransferFault fault, String detail) {
        owed = Owed.WRITES_AND_REPORT;
        end(fault, detail);
    }

    private void end(TransferFault fault, String detail) {
        if (loss == null) {
            loss = new Loss(this, fault, detail);
        }
        close();
        owed = owed == Owed.NOTHING ? Owed.WRITES : owed;
        settle();
    }

    /**
     * Worker: fails the writes and reports the loss, but not before devices have finished reading what was to be
     * written.
     */
    void settle() {
        if (isSettled() || isGatheringMemory() || domains.mayStillRead(clock.getAsLong())) {
            return;
        }
        Owed due = owed;
        owed = Owed.NOTHING;
        if (gathered != null) {
            target.staging.release(gathered);
        }
        writes.failAll(loss.fault, loss.detail);
        if (due == Owed.WRITES_AND_REPORT) {
            completions.push(CompletionRing.PEER_LOST, 0, 0, loss, loss.detail);
        }
    }

    private boolean isGatheringMemory() {
        return gathered != null && gathered.isReading();
    }

    /** Worker: whether the peer is not lost, or is and nothing reads its writes' pages any more. */
    boolean isSettled() {
        return owed == Owed.NOTHING;
    }

    /** Paths first: the end of the link tells the peer that nothing is written any more. */
    private void close() {
        domains.close();
        load.withdraw(clock.getAsLong());
        if (gathered != null) {
            gathered.close();
        }
        if (link != null) {
            link.close();
            link = null;
        }
    }

    /**
     * Worker: moves what is queued, or fails what was queued too late. An exception of the link or of a path ends this
     * peer only.
     */
    int doWork(long nowNs) {
        rest.end();
        rate.begin(writes.queuedBytes(), writes.endedBytes());
        try {
            int work = advance(nowNs);
            rest.beginIf(work == 0 && link != null && domains.areReady());
            rate.look(writes.queuedBytes(), writes.endedBytes(), nowNs);
            return work;
        } catch (RuntimeException | Error error) {
            if (link == null) {
                throw error;
            }
            if (error instanceof DeviceFault) {
                fail(TransferFault.COPY_FAILED, error.getMessage());
            } else {
                fail(TransferFault.DISCONNECTED, LinkError.describe(error));
            }
            return 1;
        }
    }

    private int advance(long nowNs) {
        if (!isSettled()) {
            int work = gathered == null ? 0 : gathered.doWork();
            settle();
            // A device that does not let go is asked seldom, and wakes nothing.
            return isSettled() ? work + 1 : isGatheringMemory() ? OutboundPaths.LOOK_SOON : work;
        }
        if (link == null) {
            return isLost() && writes.hasWork() ? writes.failAll(loss.fault, loss.detail) : 0;
        }
        int work = gathered == null ? 0 : advanceGathered();
        work += domains.areReady() ? post(nowNs) + link.send(messages) + link.sendAnswers(answers) : 0;
        work += link.doWork(nowNs);
        boolean lookSoon =
                domains.areReady() && (isGatheringMemory() || domains.used().waits() || load.yields());
        int done = domains.doWork(nowNs);
        lookSoon |= done == OutboundPaths.LOOK_SOON;
        work += Math.max(0, done);
        return lookSoon && work == 0 ? OutboundPaths.LOOK_SOON : work;
    }

    private int advanceGathered() {
        gathered.begin();
        int work = gathered.doWork();
        if (gathered.fault() != null) {
            throw gathered.fault();
        }
        return work;
    }

    @Override
    public int post(Endpoint path, WriteBatch wanted, long postId) {
        Memory.Device device = wanted.sourceDevice();
        if (device == null || domains.used().canRead(device)) {
            return path.post(wanted, postId);
        }
        if (gathered == null) {
            gathered = target.staging.gather(writes);
        }
        return gathered.post(path, wanted, postId);
    }

    @Override
    public long heldBytes(Endpoint path) {
        return path.heldBytes() + (gathered == null ? 0 : gathered.heldBytes(path));
    }

    /** Posts to the paths in rotation, so that small writes use all of them. */
    private int post(long nowNs) {
        PeerDomain peerDomain = domains.forWrites();
        if (peerDomain == null) {
            load.report(List.of(), nowNs);
            return 0;
        }
        List<PathLink> paths = peerDomain.paths();
        yieldOn(peerDomain, nowNs);
        if (peerDomain.spread() != null) {
            return peerDomain.spread().post(paths, writes, nowNs);
        }
        int work = 0;
        for (int i = 0; i < paths.size() && writes.hasWork(); i++) {
            work += postTo(paths.get((firstPath + i) % paths.size()), peerDomain.figures());
        }
        firstPath = (firstPath + 1) % paths.size();
        return work;
    }

    /** Reports to the links what this peer has for them, and lets its paths yield to what others have. */
    private void yieldOn(PeerDomain peerDomain, long nowNs) {
        load.report(peerDomain.links(), nowNs);
        TrafficClass slowest = load.slowest();
        List<PathLink> paths = peerDomain.paths();
        for (int i = 0; i < paths.size(); i++) {
            if (slowest != TrafficClass.URGENT) {
                paths.get(i).load().look(nowNs);
            }
            paths.get(i).pace(slowest, load.isMixed(), peerDomain.spread() == null ? paths.size() : 0, nowNs);
        }
    }

    /** Posts until the path is full, nothing waits or the duty cycle's budget is used up. */
    private int postTo(PathLink link, Figures figures) {
        Endpoint path = link.path();
        int work = 0;
        long turnBytes = TURN_BYTES;
        while (turnBytes > 0 && writes.next(batch, link) && post(path, batch, writes.nextPostId()) > 0) {
            writes.posted(batch, path);
            link.onPosted(writes.offered(), batch.payloadBytes());
            figures.onPosted(batch);
            turnBytes -= batch.payloadBytes();
            work++;
        }
        batch.clear();
        return work;
    }

    /** Worker: the messenger does not need this peer any more. */
    void disconnect(TransferFault fault, String detail) {
        end(fault, detail);
    }

    @Override
    public void onCompleted(int origin, long cookie) {
        completions.push(CompletionRing.WRITE_COMPLETED, cookie, origin, null, null);
    }

    @Override
    public void onFailed(int origin, long cookie, TransferFault fault, String detail) {
        completions.push(CompletionRing.WRITE_FAILED, cookie, origin, fault, detail);
    }
}
