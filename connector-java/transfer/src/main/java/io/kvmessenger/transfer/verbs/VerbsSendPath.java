package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.nic.PeerRegions;
import io.kvmessenger.transfer.nic.RegisteredSource;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * One queue pair by which this engine writes to a peer: several runs of pages form a chain of writes, of which the last
 * carries the immediate of all.
 *
 * <p>Worker only. The path is ready when an immediate that names no window has been delivered. A post is reported as
 * sent when the peer's device has acknowledged it. When the path fails, the target reports how many posts arrived: as a
 * reliable connection keeps their order, it is then known which.
 */
final class VerbsSendPath implements Endpoint {
    /** Target length of one post; a single page may be longer. */
    private static final long POST_AIM_BYTES = 1 << 20;

    private static final int DEPTH_MAX = 256;
    private static final long HELLO = -1;
    /** How long the target may take to report what arrived. */
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    private enum State {
        /** The peer has not sent the name of its queue pair. */
        WANTED,
        /** The driver connects the queue pair. */
        CONNECTING,
        CONNECTED,
        /** The immediate that names no window is on its way. */
        GREETED,
        OPEN,
        /** It has failed, and the target is asked what arrived. */
        SETTLING,
        CLOSED
    }

    /** Receives the events of the path, which is closed already at each event that ends it, except {@link #onLost}. */
    interface Events {
        /** Sends a record about the path, if there is room for it now. */
        boolean report(int kind, MemorySegment body);

        /** Reads what the peer has sent, which probably arrived before the event being handled. */
        void drain(long nowNs);

        void onOpened();

        void onSent(long postId);

        /** It was never ready. */
        void onUnopened(String detail);

        /** It has failed, and for each post it is known whether it arrived. */
        void onSettled(String fault);

        /** Whether posts have arrived is unknown, or the peer has broken a rule: the whole peer has to end. */
        void onLost(TransferFault why, String detail);
    }

    private final RegisteredSource source;
    private final int network;
    private final Events events;
    private final QueuePair pair;
    private final SendQueue queue;
    private final long writeMaxBytes;
    private final PeerRegions regions;
    private final OwedRecord request;
    private final OwedRecord failure;
    private State state = State.WANTED;
    private boolean hasPosted;
    private boolean full;
    private String fault;
    private long deadlineNs;
    private long heldMaxBytes = Long.MAX_VALUE;

    /**
     * @param deadlineNs when it must be ready
     * @throws IllegalStateException when the device refuses
     */
    VerbsSendPath(Nic nic, int network, Events events, long deadlineNs) {
        source = new RegisteredSource(nic.regions());
        this.network = network;
        this.events = events;
        regions = new PeerRegions(wanted -> events.report(VerbsRecord.REGION_WANTED, wanted));
        this.deadlineNs = deadlineNs;
        VerbsPort port = nic.verbs().port();
        writeMaxBytes = port.messageMaxBytes();
        pair = new QueuePair(nic.verbs(), true, depth(port));
        queue = new SendQueue(pair, depth(port));
        request = new OwedRecord(
                () -> events.report(VerbsRecord.PATH_WANTED, pair.name().encode()));
        failure = new OwedRecord(() -> events.report(VerbsRecord.FAILED, MemorySegment.NULL));
    }

    static int depth(VerbsPort port) {
        return Math.min(DEPTH_MAX, Math.min(port.pairEntries(), port.queueEntries()));
    }

    /** @throws IllegalArgumentException when the record breaks a rule */
    void onRecord(int kind, MemorySegment body) {
        switch (kind) {
            case VerbsRecord.ACCEPTED -> onAccepted(PairName.parse(body));
            case VerbsRecord.READY -> onReady();
            case VerbsRecord.REGION -> onRegion(RemoteMemory.parse(body));
            case VerbsRecord.SETTLED -> onSettled(body);
            default -> throw new IllegalArgumentException("unexpected control record " + kind);
        }
    }

    private void onAccepted(PairName peer) {
        if (peer == null || state != State.WANTED) {
            throw new IllegalArgumentException("the peer accepted twice, or without a name");
        }
        try {
            pair.connect(peer);
            state = State.CONNECTING;
        } catch (IllegalArgumentException e) {
            endUnopened(e.getMessage());
        }
    }

    /** Checks whether the connection is made, for which the driver may have had to wait for the network. */
    private void lookWhetherConnected() {
        try {
            state = pair.isConnected() ? State.CONNECTED : state;
        } catch (IllegalStateException e) {
            endUnopened(e.getMessage());
        }
    }

    private void onReady() {
        if (state != State.GREETED) {
            throw new IllegalArgumentException("the peer is ready too early");
        }
        state = State.OPEN;
        events.onOpened();
    }

    private void onRegion(RemoteMemory region) {
        if (!regions.take(region)) {
            events.onLost(TransferFault.WRITE_REFUSED, "the peer has no region " + region.regionId());
        }
    }

    /** The target has settled the path: nothing lands any more, and posts that did not arrive may take another path. */
    private void onSettled(MemorySegment body) {
        long arrived = body.byteSize() == Long.BYTES ? body.get(VerbsReceivePath.COUNT, 0) : -1;
        // The first post was the greeting, which the target does not count.
        long through = arrived + 1;
        if (!failure.isSent() || arrived < 0 || through > queue.posted()) {
            throw new IllegalArgumentException("the peer counts " + arrived + " posts on a path of " + queue.posted());
        }
        if (through < queue.completed()) {
            events.onLost(TransferFault.DISCONNECTED, fault + "; of what was acknowledged the peer lacks a part");
            return;
        }
        close();
        while (queue.completed() < through) {
            reportSent(queue.complete());
        }
        events.onSettled(fault);
    }

    /** Advances the path; returns the work done, or {@link OutboundPaths#LOOK_SOON}. */
    int doWork(long nowNs) {
        if (state != State.CLOSED && !isOpen()) {
            connect(nowNs);
        }
        int work = isUsable() && (queue.isInUse() || full) ? read() : 0;
        if (fault != null && state != State.CLOSED) {
            fail(nowNs);
        }
        boolean isIdle = work == 0 && state != State.CLOSED;
        return isIdle && (queue.isInUse() || full || state != State.OPEN || fault != null)
                ? OutboundPaths.LOOK_SOON
                : work;
    }

    private boolean isUsable() {
        return state != State.CLOSED && fault == null;
    }

    private void connect(long nowNs) {
        request.send();
        if (nowNs - deadlineNs > 0) {
            endUnopened("no answer over " + pair.device() + " within connect_limit_seconds");
            return;
        }
        if (state == State.CONNECTING) {
            lookWhetherConnected();
        }
        if (state == State.CONNECTED && fault == null && take(queue.post(Imm.NONE, HELLO))) {
            state = State.GREETED;
        }
    }

    private int read() {
        full = false;
        int found = pair.poll();
        for (int i = 0; i < found && isUsable(); i++) {
            if (pair.status(i) == VerbsApi.IBV_WC_SUCCESS) {
                reportSent(queue.complete());
            } else {
                fault = pair.device() + " reports: " + pair.describe(i);
            }
        }
        if (found < 0) {
            fault = pair.device() + " cannot read its completions: " + Errno.name(-found);
        }
        return Math.max(0, found);
    }

    private void reportSent(long postId) {
        if (postId != HELLO) {
            events.onSent(postId);
        }
    }

    /** Stops, and asks the target what arrived. If the peer has ended, its control socket reports that. */
    private void fail(long nowNs) {
        if (!isOpen()) {
            endUnopened(fault);
            return;
        }
        if (state == State.OPEN) {
            state = State.SETTLING;
            deadlineNs = nowNs + SETTLE_LIMIT_NS;
            try {
                pair.stop();
            } catch (IllegalStateException e) {
                events.onLost(TransferFault.DISCONNECTED, fault + "; " + e.getMessage());
                return;
            }
        }
        failure.send();
        events.drain(nowNs);
        if (state != State.CLOSED && nowNs - deadlineNs > 0) {
            events.onLost(TransferFault.DISCONNECTED, fault + "; the peer has not said what came through");
        }
    }

    private void endUnopened(String detail) {
        close();
        events.onUnopened(detail);
    }

    /** Limits the time until it must be ready. */
    void limitOpening(long limitNs) {
        if (!isOpen() && limitNs - deadlineNs < 0) {
            deadlineNs = limitNs;
        }
    }

    boolean isOpen() {
        return state == State.OPEN || state == State.SETTLING;
    }

    @Override
    public int network() {
        return network;
    }

    /** Posted writes cannot be taken back, so all of them count. */
    @Override
    public long heldBytes() {
        return state == State.CLOSED ? 0 : queue.heldBytes();
    }

    @Override
    public void limitUnsent(long lengthBytes) {
        heldMaxBytes = lengthBytes;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!isUsable() || regions.isWaiting() || queue.room() == 0 || queue.heldBytes() >= heldMaxBytes) {
            return 0;
        }
        boolean taken = batch.pageCount() == 0 ? postImmediate(batch, postId) : postPages(batch, postId);
        hasPosted |= taken;
        return taken ? batch.unitCount() : 0;
    }

    private boolean postImmediate(WriteBatch batch, long postId) {
        return take(queue.post(Imm.withWeight(batch.window(), (int) batch.weight()), postId));
    }

    private boolean postPages(WriteBatch batch, long postId) {
        RemoteMemory region = regions.find(batch.regionId());
        if (region == null || !findSource(batch)) {
            return false;
        }
        batch.limit(Integer.MAX_VALUE, Math.min(POST_AIM_BYTES, writeMaxBytes), Imm.WEIGHT_MAX);
        int room = queue.room();
        int writes = 0;
        int pages = 0;
        while (pages < batch.pageCount() && writes < room) {
            int run = batch.runLength(pages);
            if (!set(batch, region, writes, pages, run * batch.pageBytes())) {
                return false;
            }
            pages += run;
            writes++;
        }
        batch.limit(pages, Long.MAX_VALUE, Imm.WEIGHT_MAX);
        int imm = Imm.withWeight(batch.window(), (int) batch.weight());
        return take(queue.post(writes, batch.payloadBytes(), imm, postId));
    }

    /** Describes one write, of a run of pages; false if it cannot be one. */
    private boolean set(WriteBatch batch, RemoteMemory region, int write, int page, long lengthBytes) {
        fault = PeerRegions.refusal(batch, page, lengthBytes, region, writeMaxBytes);
        if (fault != null) {
            return false;
        }
        long offset = Objects.checkFromIndexSize(batch.sourceOffsetBytes(page), lengthBytes, batch.sourceLengthBytes());
        queue.set(
                write,
                batch.sourceAddress() + offset,
                lengthBytes,
                (int) source.localKey(),
                region.base() + batch.targetOffsetBytes(page),
                (int) region.key());
        return true;
    }

    private boolean findSource(WriteBatch batch) {
        fault = source.find(batch);
        return fault == null;
    }

    /** Returns whether the device has accepted the post. */
    private boolean take(int result) {
        if (result == 0) {
            return true;
        }
        full = true;
        if (result != -Errno.ENOMEM) {
            fault = pair.device() + " takes no writes: " + Errno.name(-result);
        }
        return false;
    }

    @Override
    public void giveUp() {
        if (isUsable()) {
            fault = pair.device() + " has had no acknowledgement for too long";
        }
    }

    /** Posts reported as sent may still be uncounted in the target's queue, until the path is settled. */
    @Override
    public boolean mayOweDelivery() {
        return hasPosted;
    }

    /** @throws IllegalStateException when the device refuses: then posted memory may still be read */
    void close() {
        if (state == State.CLOSED) {
            return;
        }
        state = State.CLOSED;
        release();
    }

    private void release() {
        pair.close();
        queue.close();
        source.close();
    }

    /** As {@link OutboundPaths#mayStillRead}. */
    boolean mayStillRead() {
        if (!isRead()) {
            return false;
        }
        try {
            release();
        } catch (IllegalStateException e) {
            return isRead();
        }
        return false;
    }

    /** Closed, but for its device, which has not completed all that was posted. */
    private boolean isRead() {
        return state == State.CLOSED && pair.mayRead() && queue.isInUse();
    }
}
