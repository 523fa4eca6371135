package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
import io.kvmessenger.transfer.spi.RemoteMemory;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;

/**
 * One peer that this engine writes to through a queue pair of its own: some runs of pages are a chain of writes, of which the last
 * carries the immediate of all.
 *
 * <p>Worker only. The path is ready when an immediate that names no window has come through. A post is told as sent when the peer's
 * device has acknowledged it. When the path fails, the target says how many posts came through: a reliable connection keeps their
 * order, so that it is known of each whether it did.
 */
final class VerbsOutboundPaths implements OutboundPaths, Endpoint, PeerChannel.Reader {
    /** What one post aims at; one page may be longer. */
    private static final long POST_AIM_BYTES = 1 << 20;

    private static final int DEPTH_MAX = 256;
    private static final long HELLO = -1;
    /** Until the target has said what came through. */
    private static final long SETTLE_LIMIT_NS = 10_000_000_000L;

    private final VerbsRegions own;
    private final OutboundChannel channel;
    private final PathEvents events;
    private final Figures figures;
    private final QueuePair pair;
    private final SendQueue queue;
    private final long connectDeadlineNs;
    private final long writeMaxBytes;
    private final Map<Integer, RemoteMemory> regions = new HashMap<>();
    private MemorySegment lastSource;
    private int seenChanges;
    private int lastKey;
    private RemoteMemory lastRegion;
    private int wantedRegionId;
    private boolean waitingForRegion;
    private boolean connected;
    private boolean greeted;
    private boolean opened;
    private boolean hasPosted;
    private boolean full;
    private String fault;
    private boolean stopped;
    private boolean failureTold;
    private long settleDeadlineNs;
    private boolean closed;

    /**
     * Takes the queue pair over.
     *
     * @throws IllegalStateException when too much was asked of the peer; the queue pair stays the caller's
     */
    VerbsOutboundPaths(
            VerbsRegions own,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            QueuePair pair,
            VerbsPort port,
            long connectDeadlineNs) {
        this.own = own;
        this.channel = channel;
        this.events = events;
        this.figures = figures;
        this.pair = pair;
        this.connectDeadlineNs = connectDeadlineNs;
        writeMaxBytes = port.messageMaxBytes();
        if (!channel.open(pair.name().encode(), this)) {
            throw new IllegalStateException("the peer was asked for too many paths");
        }
        queue = new SendQueue(pair, depth(port));
    }

    static int depth(VerbsPort port) {
        return Math.min(DEPTH_MAX, Math.min(port.pairEntries(), port.queueEntries()));
    }

    @Override
    public void onRecord(int kind, MemorySegment payload, long nowNs) {
        switch (kind) {
            case VerbsRecord.ACCEPTED -> onAccepted(PairName.parse(payload));
            case VerbsRecord.READY -> onReady();
            case VerbsRecord.REGION -> onRegion(RemoteMemory.parse(payload));
            case VerbsRecord.SETTLED -> onSettled(payload);
            default -> lose(TransferFault.PROTOCOL, "unexpected control record " + kind);
        }
    }

    private void onAccepted(PairName peer) {
        if (peer == null || connected) {
            lose(TransferFault.PROTOCOL, "the peer accepted twice, or without a name");
            return;
        }
        try {
            pair.connect(peer);
        } catch (IllegalArgumentException | IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
            return;
        }
        connected = true;
    }

    private void onReady() {
        if (!greeted || opened) {
            lose(TransferFault.PROTOCOL, "the peer is ready too early");
            return;
        }
        opened = true;
        figures.increment(TransferCounter.PATHS_OPENED);
        events.onReady();
        events.onPathOpened(this);
    }

    private void onRegion(RemoteMemory region) {
        if (!waitingForRegion || region == null || region.regionId() != wantedRegionId) {
            lose(TransferFault.PROTOCOL, "the peer sent a region that was not asked for");
            return;
        }
        waitingForRegion = false;
        if (region.lengthBytes() == RemoteMemory.UNKNOWN) {
            lose(TransferFault.WRITE_REFUSED, "the peer has no region " + region.regionId());
            return;
        }
        regions.put(region.regionId(), region);
    }

    /** From now on nothing lands at the target; what did not come through may go another way. */
    private void onSettled(MemorySegment payload) {
        long arrived = payload.byteSize() == Long.BYTES ? payload.get(VerbsInboundPaths.COUNT, 0) : -1;
        // The first post was the greeting, which the target does not count.
        long through = arrived + 1;
        if (!failureTold || arrived < 0 || through > queue.posted()) {
            lose(TransferFault.PROTOCOL, "the peer counts " + arrived + " posts on a path of " + queue.posted());
            return;
        }
        if (through < queue.completed()) {
            lose(TransferFault.DISCONNECTED, fault + "; of what was acknowledged the peer lacks a part");
            return;
        }
        close();
        while (queue.completed() < through) {
            tellSent(queue.complete());
        }
        events.onPathLost(this);
        events.onFailed(TransferFault.DISCONNECTED, fault);
    }

    @Override
    public void onRefused(TransferFault why, String detail) {
        lose(why, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    private void lose(TransferFault why, String detail) {
        if (!closed) {
            close();
            events.onFailed(why, detail);
        }
    }

    @Override
    public int doWork(long nowNs) {
        if (closed) {
            return 0;
        }
        if (!opened && nowNs - connectDeadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "no word over verbs in time");
            return 0;
        }
        if (connected && !greeted && fault == null) {
            greeted = take(queue.post(Imm.NONE, HELLO));
        }
        int work = fault == null && (queue.isInUse() || full) ? read() : 0;
        if (fault != null && !closed) {
            fail(nowNs);
        }
        return work == 0 && !closed && (queue.isInUse() || full || !opened || fault != null) ? LOOK_SOON : work;
    }

    private int read() {
        full = false;
        int found = pair.poll();
        for (int i = 0; i < found && !closed && fault == null; i++) {
            if (pair.status(i) == VerbsApi.IBV_WC_SUCCESS) {
                tellSent(queue.complete());
            } else {
                fault = pair.device() + " reports: " + pair.describe(i);
            }
        }
        if (found < 0) {
            fault = pair.device() + " cannot read its completions: " + Errno.name(-found);
        }
        return Math.max(0, found);
    }

    private void tellSent(long postId) {
        if (postId != HELLO) {
            events.onSent(postId);
        }
    }

    /** Stops, and asks the target what came through. Where the peer has ended its control socket tells of it. */
    private void fail(long nowNs) {
        if (!opened) {
            lose(TransferFault.UNREACHABLE, fault);
            return;
        }
        if (!stopped) {
            stopped = true;
            settleDeadlineNs = nowNs + SETTLE_LIMIT_NS;
            pair.stop();
        }
        failureTold = failureTold || channel.tell(VerbsRecord.FAILED, MemorySegment.NULL);
        channel.drain(nowNs);
        if (nowNs - settleDeadlineNs > 0) {
            lose(TransferFault.DISCONNECTED, fault + "; the peer has not said what came through");
        }
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (closed || fault != null || waitingForRegion || queue.room() == 0) {
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
        if (!findRegion(batch.regionId()) || !findSource(batch.source())) {
            return false;
        }
        batch.limit(Integer.MAX_VALUE, Math.min(POST_AIM_BYTES, writeMaxBytes), Imm.WEIGHT_MAX);
        int room = queue.room();
        int writes = 0;
        int pages = 0;
        while (pages < batch.pageCount() && writes < room) {
            int run = batch.runLength(pages);
            if (!set(batch, writes, pages, run * batch.pageBytes())) {
                return false;
            }
            pages += run;
            writes++;
        }
        batch.limit(pages, Long.MAX_VALUE, Imm.WEIGHT_MAX);
        return take(queue.post(writes, Imm.withWeight(batch.window(), (int) batch.weight()), postId));
    }

    /** Describes one write, a run of pages; false where it cannot be one. */
    private boolean set(WriteBatch batch, int write, int page, long lengthBytes) {
        long to = batch.targetOffsetBytes(page);
        if (lengthBytes > writeMaxBytes) {
            fault = "a page of " + lengthBytes + " bytes is longer than one write may be, " + writeMaxBytes;
        } else if (to < 0 || to > lastRegion.lengthBytes() - lengthBytes) {
            fault = "the peer's region " + batch.regionId() + " is shorter than it said";
        }
        if (fault != null) {
            return false;
        }
        long offset = Objects.checkFromIndexSize(
                batch.sourceOffsetBytes(page), lengthBytes, batch.source().byteSize());
        queue.set(write, batch.source().address() + offset, lengthBytes, lastKey, lastRegion.base() + to, (int)
                lastRegion.key());
        return true;
    }

    /** Finds what the peer says of a region, or asks for it. */
    private boolean findRegion(int regionId) {
        if (lastRegion != null && lastRegion.regionId() == regionId) {
            return true;
        }
        RemoteMemory known = regions.get(regionId);
        if (known != null) {
            lastRegion = known;
            return true;
        }
        wantedRegionId = regionId;
        waitingForRegion = channel.tell(
                VerbsRecord.REGION_WANTED, RemoteMemory.unknown(regionId).encode());
        return false;
    }

    private boolean findSource(MemorySegment source) {
        int changes = own.changes();
        if (changes == seenChanges && source.equals(lastSource)) {
            return true;
        }
        VerbsRegions.Registered registered = own.around(source);
        if (registered == null) {
            fault = "a source is not registered with it";
            return false;
        }
        seenChanges = changes;
        lastSource = source;
        lastKey = registered.localKey();
        return true;
    }

    /** Returns whether the device has taken the post. */
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

    /** What was told as sent may lie in the target's queue, uncounted; only a path that was settled owes nothing. */
    @Override
    public boolean mayOweDelivery() {
        return hasPosted;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        pair.close();
        queue.close();
        lastSource = null;
        if (opened) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
