package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * A peer that this engine writes to: its queues, and the paths that they are posted to once one transport has worked.
 *
 * <p>The messenger's thread fills the queues; everything else is the worker's. The path that has room takes the next slice;
 * what a lost path had is posted to the others. It tries each transport once.
 */
final class OutboundPeer implements Peer, LinkEvents, WriteLedger.Completions {
    /** What one turn may post to a path before other peers get theirs. */
    static final long TURN_BYTES = 2 << 20;

    private static final int MESSAGES_MAX = 16;

    /** A domain of ours and where the peer offers it. */
    record Road(Domain domain, TransportAddress address) {}

    /** What is pushed when no road is left. */
    record Loss(OutboundPeer peer, TransferFault fault) {}

    private final int id;
    private final String name;
    private final byte[] admissionKey;
    private final CompletionRing completions;
    private final LongSupplier clock;
    private final WriteLedger writes;
    private final MessageQueue messages = new MessageQueue(MESSAGES_MAX);
    private final Figures figures;
    private final List<Endpoint> paths = new ArrayList<>();
    private final WriteBatch batch = new WriteBatch();
    private final Allowances allowances;
    private final Iterator<Road> roads;
    private volatile String transport = "";
    private volatile boolean lost;

    private OutboundLink link;
    private Road road;
    private boolean ready;
    private int firstPath;

    OutboundPeer(
            int id,
            String name,
            byte[] admissionKey,
            List<Road> roads,
            int requestsMax,
            Allowances allowances,
            CompletionRing completions,
            Figures figures,
            LongSupplier clock) {
        this.id = id;
        this.name = name;
        this.admissionKey = admissionKey.clone();
        this.completions = completions;
        this.clock = clock;
        this.allowances = allowances;
        this.roads = roads.iterator();
        this.figures = figures;
        writes = new WriteLedger(requestsMax, this);
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

    WriteLedger writes() {
        return writes;
    }

    MessageQueue messages() {
        return messages;
    }

    Allowances allowances() {
        return allowances;
    }

    boolean isLost() {
        return lost;
    }

    /** Worker: tries the next transport. */
    void connect(long nowNs) {
        tryNext(TransferFault.UNREACHABLE, "no transport in common with " + name, nowNs);
    }

    private void tryNext(TransferFault fault, String detail, long nowNs) {
        if (!roads.hasNext()) {
            fail(fault, detail);
            return;
        }
        road = roads.next();
        try {
            link = road.domain.connect(road.address.location(), admissionKey, messages, this, nowNs);
        } catch (IllegalArgumentException | IllegalStateException e) {
            tryNext(TransferFault.UNREACHABLE, e.getMessage(), nowNs);
        } catch (RuntimeException | Error error) {
            tryNext(TransferFault.UNREACHABLE, LinkError.describe(error), nowNs);
        }
    }

    @Override
    public void onReady() {
        ready = true;
        transport = road.domain.name();
        completions.push(CompletionRing.PEER_READY, 0, 0, this, null);
    }

    @Override
    public void onLost(TransferFault fault, String detail) {
        link = null;
        paths.clear();
        if (ready) {
            fail(fault, detail);
        } else {
            tryNext(fault, road.domain.name() + ": " + detail, clock.getAsLong());
        }
    }

    @Override
    public void onPathOpened(Endpoint path) {
        paths.add(path);
    }

    @Override
    public void onPathLost(Endpoint path) {
        paths.remove(path);
        figures.add(TransferCounter.WRITES_REPEATED, writes.reclaim(path));
    }

    @Override
    public void onSent(long postId) {
        writes.sent(postId);
    }

    private void fail(TransferFault fault, String detail) {
        lost = true;
        writes.failAll(fault, detail);
        completions.push(CompletionRing.PEER_LOST, 0, 0, new Loss(this, fault), detail);
    }

    /**
     * Worker: moves what is queued, or fails what was queued too late. An exception of the link ends the link and nothing
     * else.
     */
    int doWork(long nowNs) {
        try {
            return advance(nowNs);
        } catch (RuntimeException | Error error) {
            OutboundLink broken = link;
            if (broken == null) {
                throw error;
            }
            broken.close();
            onLost(TransferFault.DISCONNECTED, LinkError.describe(error));
            return 1;
        }
    }

    private int advance(long nowNs) {
        if (link != null) {
            int posted = ready ? post() : 0;
            int done = link.doWork(nowNs);
            return posted > 0 ? posted + Math.max(0, done) : done;
        }
        return lost && writes.hasWork()
                ? writes.failAll(TransferFault.PEER_CLOSED, "the peer " + name + " is gone")
                : 0;
    }

    /** Small writes go round, so that no path is busy while others are idle. */
    private int post() {
        int work = 0;
        int count = paths.size();
        for (int i = 0; i < count && writes.hasWork(); i++) {
            work += postTo(paths.get((firstPath + i) % count));
        }
        firstPath = count == 0 ? 0 : (firstPath + 1) % count;
        return work;
    }

    /** Posts until the path is full, nothing waits or the turn is over. */
    private int postTo(Endpoint path) {
        int work = 0;
        long turnBytes = TURN_BYTES;
        while (turnBytes > 0 && writes.next(batch) && path.post(batch, writes.nextPostId()) > 0) {
            writes.posted(batch, path);
            figures.onPosted(batch);
            turnBytes -= batch.payloadBytes();
            work++;
        }
        batch.clear();
        return work;
    }

    /** Worker: the messenger wants no more of this peer. */
    void disconnect(TransferFault fault, String detail) {
        lost = true;
        if (link != null) {
            link.close();
            link = null;
        }
        paths.clear();
        writes.failAll(fault, detail);
    }

    @Override
    public void onCompleted(long cookie) {
        completions.push(CompletionRing.WRITE_COMPLETED, cookie, 0, null, null);
    }

    @Override
    public void onFailed(long cookie, TransferFault fault, String detail) {
        completions.push(CompletionRing.WRITE_FAILED, cookie, 0, fault, detail);
    }
}
