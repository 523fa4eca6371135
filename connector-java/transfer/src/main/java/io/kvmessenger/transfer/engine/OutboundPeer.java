package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
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
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.LongSupplier;

/**
 * A peer that this engine writes to: its queues, its link, and the domains that its data may take.
 *
 * <p>The messenger's thread fills the queues; everything else is the worker's. Writes take the first domain, in order of
 * preference, that has an open path; among its paths, the next slice goes to one with room, and what a lost path had is
 * posted to the others. A domain is opened when no earlier one has a path, or when an earlier one has had none for
 * longer than its domain may take to repair it; earlier domains are retried meanwhile. The peer is lost with its link,
 * or when no domain is left.
 */
final class OutboundPeer implements Peer, LinkEvents, PeerDomain.Owner, WriteLedger.Completions, PathSpread.Posting {
    /** Bytes that one duty cycle may post to a path before other peers are served. */
    static final long TURN_BYTES = 2 << 20;

    private static final int MESSAGES_MAX = 16;

    /**
     * The peer's address, and the means to reach it.
     *
     * @param domains this engine's, in order of preference
     * @param staging gathers device memory for domains that do not reach it
     */
    record Target(EngineAddress address, byte[] admissionKey, Links links, List<Domain> domains, Staging staging) {}

    /** Pushed when no domain is left. */
    record Loss(OutboundPeer peer, TransferFault fault) {}

    private final int id;
    private final String name;
    private final Target target;
    private final CompletionRing completions;
    private final LongSupplier clock;
    private final WriteLedger writes;
    private final SendRate rate;
    private final MessageQueue messages = new MessageQueue(MESSAGES_MAX);
    /** The peer's read requests. */
    private final MessageQueue asked = new MessageQueue(InboundAdmission.READS_ASKED_MAX);

    private final AtomicBoolean askedReported = new AtomicBoolean();
    /** Results of the peer's reads, to be sent to it. */
    private final MessageQueue answers = new MessageQueue(InboundAdmission.READS_ASKED_MAX);

    private final List<PeerDomain> peerDomains = new ArrayList<>(2);
    private final PageLimit pageLimit;
    private final WriteBatch batch = new WriteBatch();
    /** Null until device memory is posted to a path that does not reach it. */
    private GatheredWrites gathered;

    private final Allowances allowances;
    private volatile String transport = "";
    private volatile boolean lost;
    /** Why the peer was lost; writes submitted before the loss was visible fail with it too. Worker only. */
    private TransferFault lossFault;

    private String lossDetail;
    private boolean lossUntold;
    /** False from the loss until it may be reported. Worker only. */
    private boolean settled = true;

    private boolean forgotten;

    private OutboundLink link;
    private boolean ready;
    /** The domain that writes take, or took last; null before the first is ready. */
    private PeerDomain used;

    private boolean pathless;
    private long pathDeadlineNs;
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
        for (Domain domain : target.domains) {
            for (TransportAddress offered : target.address.transports()) {
                if (offered.transport().equals(domain.name())) {
                    peerDomains.add(
                            new PeerDomain(domain, figures.ofTransport(domain.name()), offered.location(), this));
                    pageLimit.add(domain);
                }
            }
        }
        writes = new WriteLedger(requestsMax, this);
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
        return transport;
    }

    @Override
    public long queuedBytes() {
        return writes.queuedBytes();
    }

    @Override
    public double bytesPerSecond() {
        return rate.bytesPerSecond();
    }

    /** Messenger's thread: whether {@link #offer} will succeed. */
    boolean hasRoom() {
        return writes.hasRoom();
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
        return lost;
    }

    /** Messenger's thread: no more is submitted for this peer. */
    void forget() {
        forgotten = true;
    }

    /** Messenger's thread: whether any further submit would fail. */
    boolean isGone() {
        return lost || forgotten;
    }

    /** Worker: starts to connect. */
    void connect(long nowNs) {
        if (peerDomains.isEmpty()) {
            fail(TransferFault.UNREACHABLE, "no transport in common with " + name);
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
        tryNext(TransferFault.UNREACHABLE, "no transport in common with " + name, clock.getAsLong());
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
        if (!lost) {
            fail(fault, detail);
        }
    }

    private void tryNext(TransferFault fault, String detail, long nowNs) {
        TransferFault lastFault = fault;
        String lastDetail = detail;
        for (PeerDomain peerDomain : peerDomains) {
            if (!peerDomain.isUntried()) {
                continue;
            }
            String problem = attach(peerDomain, nowNs);
            if (problem == null) {
                return;
            }
            lastFault = TransferFault.UNREACHABLE;
            lastDetail = problem;
        }
        fail(lastFault, lastDetail);
    }

    /** Returns why the domain cannot be tried, or null. */
    private String attach(PeerDomain peerDomain, long nowNs) {
        try {
            peerDomain.attach(link, nowNs);
            return null;
        } catch (IllegalArgumentException | IllegalStateException e) {
            return peerDomain.name() + ": " + e.getMessage();
        } catch (RuntimeException | Error error) {
            return peerDomain.name() + ": " + LinkError.describe(error);
        }
    }

    @Override
    public void onReady(PeerDomain peerDomain) {
        if (!ready) {
            ready = true;
            used = peerDomain;
            transport = peerDomain.name();
            completions.push(CompletionRing.PEER_READY, 0, 0, this, null);
        }
    }

    @Override
    public void onServing(PeerDomain peerDomain) {
        for (PeerDomain other : peerDomains) {
            if (other != peerDomain) {
                other.forgetTrial();
            }
        }
    }

    @Override
    public void onFailed(PeerDomain peerDomain, List<Endpoint> unproven, TransferFault fault, String detail) {
        peerDomain.detach(link);
        for (Endpoint path : unproven) {
            if (writes.isUnderWay(path) || path.mayOweDelivery()) {
                // Whether it arrived is unknown: sent again it might count twice, not sent again it might be missing.
                fail(fault, detail);
                return;
            }
        }
        if (usable() == null && !isAttaching()) {
            tryNext(fault, ready ? detail : peerDomain.name() + ": " + detail, clock.getAsLong());
        }
    }

    @Override
    public void onPathLost(PeerDomain peerDomain, Endpoint path) {
        if (gathered != null) {
            gathered.onPathLost(path);
        }
        peerDomain.figures().add(TransferCounter.WRITES_REPEATED, writes.reclaim(path));
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
        lossUntold = true;
        end(fault, detail);
    }

    private void end(TransferFault fault, String detail) {
        if (!lost) {
            lossFault = fault;
            lossDetail = detail;
            lost = true;
        }
        close();
        settled = false;
        settle();
    }

    /** Worker: reports the loss, but not before devices have finished reading what was to be written. */
    void settle() {
        if (settled || (gathered != null && gathered.isReading())) {
            return;
        }
        settled = true;
        if (gathered != null) {
            target.staging.release(gathered);
        }
        writes.failAll(lossFault, lossDetail);
        if (lossUntold) {
            lossUntold = false;
            completions.push(CompletionRing.PEER_LOST, 0, 0, new Loss(this, lossFault), lossDetail);
        }
    }

    /** Worker: whether the peer is lost and nothing reads its writes' pages any more. */
    boolean isSettled() {
        return settled;
    }

    /** Paths first: the end of the link tells the peer that nothing is written any more. */
    private void close() {
        for (int i = 0; i < peerDomains.size(); i++) {
            peerDomains.get(i).close();
        }
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
        rate.begin(writes.queuedBytes(), writes.endedBytes());
        try {
            int work = advance(nowNs);
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
        if (!settled) {
            int work = gathered.doWork();
            settle();
            return settled ? work + 1 : OutboundPaths.LOOK_SOON;
        }
        if (link == null) {
            return lost && writes.hasWork() ? writes.failAll(lossFault, lossDetail) : 0;
        }
        int work = gathered == null ? 0 : advanceGathered();
        work += ready ? post(nowNs) + link.send(messages) + link.sendAnswers(answers) : 0;
        work += link.doWork(nowNs);
        boolean lookSoon = ready && (used.waits() || (gathered != null && gathered.isReading()));
        for (int i = 0; i < peerDomains.size() && link != null; i++) {
            int done = peerDomains.get(i).doWork(nowNs);
            lookSoon |= done == OutboundPaths.LOOK_SOON;
            work += Math.max(0, done);
        }
        if (ready && link != null) {
            giveUpSilentPaths(nowNs);
        }
        if (ready && link != null) {
            watch(nowNs);
        }
        return lookSoon && work == 0 ? OutboundPaths.LOOK_SOON : work;
    }

    /** The first domain with an open path, or null. */
    private PeerDomain usable() {
        for (int i = 0; i < peerDomains.size(); i++) {
            if (!peerDomains.get(i).paths().isEmpty()) {
                return peerDomains.get(i);
            }
        }
        return null;
    }

    private boolean isAttaching() {
        for (int i = 0; i < peerDomains.size(); i++) {
            if (peerDomains.get(i).isPending()) {
                return true;
            }
        }
        return false;
    }

    /** Gives up silent paths. What they had is posted again once it is known that it cannot land any more. */
    private void giveUpSilentPaths(long nowNs) {
        for (int i = 0; i < peerDomains.size() && link != null; i++) {
            Endpoint stalled = peerDomains.get(i).stalledPath(nowNs);
            if (stalled != null) {
                stalled.giveUp();
            }
            List<Endpoint> silent = peerDomains.get(i).silentPaths(writes, nowNs);
            for (int j = 0; j < silent.size() && link != null; j++) {
                // What a device is still copying has not reached the path yet.
                if (gathered == null || !gathered.isGathering(writes.oldestPost(silent.get(j)))) {
                    silent.get(j).giveUp();
                }
            }
        }
    }

    /** Ensures that there is a domain, and tries to find a better one. */
    private void watch(long nowNs) {
        PeerDomain open = usable();
        if (open == null && !pathless) {
            pathDeadlineNs = nowNs + used.repairLimitNs();
        }
        pathless = open == null;
        if (!pathless) {
            lookForBetter(open, nowNs);
        } else if (!isAttaching() && nowNs - pathDeadlineNs > 0) {
            tryNext(
                    TransferFault.UNREACHABLE,
                    "no data path to " + used.location() + " could be opened again in time",
                    nowNs);
        }
    }

    private void lookForBetter(PeerDomain open, long nowNs) {
        for (int i = 0; peerDomains.get(i) != open; i++) {
            if (peerDomains.get(i).isToBeTriedAgain(nowNs)) {
                attach(peerDomains.get(i), nowNs);
            }
        }
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
        if (device == null || used.canRead(device)) {
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
        PeerDomain peerDomain = usable();
        if (peerDomain == null) {
            return 0;
        }
        if (peerDomain != used) {
            used = peerDomain;
            transport = peerDomain.name();
        }
        List<Endpoint> paths = peerDomain.paths();
        if (peerDomain.spread() != null) {
            return peerDomain.spread().post(paths, writes, nowNs);
        }
        int work = 0;
        int count = paths.size();
        for (int i = 0; i < count && writes.hasWork(); i++) {
            work += postTo(paths.get((firstPath + i) % count), peerDomain.figures());
        }
        firstPath = (firstPath + 1) % count;
        return work;
    }

    /** Posts until the path is full, nothing waits or the duty cycle's budget is used up. */
    private int postTo(Endpoint path, Figures figures) {
        int work = 0;
        long turnBytes = TURN_BYTES;
        while (turnBytes > 0 && writes.next(batch) && post(path, batch, writes.nextPostId()) > 0) {
            writes.posted(batch, path);
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
