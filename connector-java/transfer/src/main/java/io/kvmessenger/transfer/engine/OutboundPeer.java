package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundEvents;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.Outbox;
import io.kvmessenger.transfer.spi.RequestQueue;
import io.kvmessenger.transfer.spi.Transport;
import java.util.Iterator;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * A peer that this engine writes to: its queues, and the link that empties them once one transport has worked.
 *
 * <p>The messenger's thread fills the queues; everything else is the worker's. It tries each transport once.
 */
final class OutboundPeer implements Peer, OutboundEvents, RequestQueue.Completions {
    private static final int MESSAGES_MAX = 16;

    /** A transport of ours and where the peer offers it. */
    record Road(Transport transport, TransportAddress address) {}

    /** What is pushed when no road is left. */
    record Loss(OutboundPeer peer, TransferFault fault) {}

    private final int id;
    private final String name;
    private final byte[] admissionKey;
    private final CompletionRing completions;
    private final LongSupplier clock;
    private final Outbox outbox;
    private final Allowances allowances;
    private final Iterator<Road> roads;
    private volatile String transport = "";
    private volatile boolean lost;

    private OutboundLink link;
    private Road road;
    private boolean ready;

    OutboundPeer(
            int id,
            String name,
            byte[] admissionKey,
            List<Road> roads,
            int requestsMax,
            Allowances allowances,
            CompletionRing completions,
            LongSupplier clock) {
        this.id = id;
        this.name = name;
        this.admissionKey = admissionKey.clone();
        this.completions = completions;
        this.clock = clock;
        this.allowances = allowances;
        this.roads = roads.iterator();
        outbox = new Outbox(new RequestQueue(requestsMax, this), new MessageQueue(MESSAGES_MAX));
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

    Outbox outbox() {
        return outbox;
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
            link = road.transport.connect(road.address.location(), admissionKey, outbox, this, nowNs);
        } catch (IllegalArgumentException | IllegalStateException e) {
            tryNext(TransferFault.UNREACHABLE, e.getMessage(), nowNs);
        } catch (RuntimeException | Error error) {
            tryNext(TransferFault.UNREACHABLE, LinkError.describe(error), nowNs);
        }
    }

    @Override
    public void onReady() {
        ready = true;
        transport = road.transport.name();
        completions.push(CompletionRing.PEER_READY, 0, 0, this, null);
    }

    @Override
    public void onLost(TransferFault fault, String detail) {
        link = null;
        if (ready) {
            fail(fault, detail);
        } else {
            tryNext(fault, road.transport.name() + ": " + detail, clock.getAsLong());
        }
    }

    private void fail(TransferFault fault, String detail) {
        lost = true;
        outbox.requests().failAll(fault, detail);
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
            return link.doWork(nowNs);
        }
        return lost && outbox.requests().hasWork()
                ? outbox.requests().failAll(TransferFault.PEER_CLOSED, "the peer " + name + " is gone")
                : 0;
    }

    /** Worker: the messenger wants no more of this peer. */
    void disconnect(TransferFault fault, String detail) {
        lost = true;
        if (link != null) {
            link.close();
            link = null;
        }
        outbox.requests().failAll(fault, detail);
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
