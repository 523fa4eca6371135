package io.kvmessenger.transfer.path;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;

/**
 * The paths of one domain to one peer, from the request to the end: requested, open, closed. A transport adds how they
 * are connected, what they move, and what they release.
 *
 * <p>Worker only. The peer must let the first path open within the limit. A loss is reported once, after everything is
 * closed. No method of it is called for a page.
 */
public abstract class WriterPaths implements OutboundPaths, PeerChannel.Reader {
    private enum State {
        /** Requested, and no path accepts posts yet. */
        CONNECTING,
        OPEN,
        CLOSED
    }

    private final OutboundChannel channel;
    private final PathEvents events;
    private final Figures figures;
    private final long connectDeadlineNs;
    private State state = State.CONNECTING;
    private int openCount;

    /** @param connectDeadlineNs when the first path must be open */
    protected WriterPaths(OutboundChannel channel, PathEvents events, Figures figures, long connectDeadlineNs) {
        this.channel = channel;
        this.events = events;
        this.figures = figures;
        this.connectDeadlineNs = connectDeadlineNs;
    }

    /**
     * Requests the paths from the peer: the last step of a constructor.
     *
     * @throws IllegalStateException when the peer has been asked too often
     */
    protected final void request(MemorySegment wish) {
        if (!channel.open(wish, this)) {
            throw new IllegalStateException("the peer was asked for too many paths");
        }
    }

    /**
     * Handles a record of the peer.
     *
     * @throws IllegalArgumentException when it breaks a rule
     * @throws IllegalStateException when the operating system or a device refuses what it needs
     */
    protected abstract void onPeerRecord(int kind, MemorySegment payload, long nowNs);

    /** Until the first path is open: advances; returns as {@link #doWork}. */
    protected abstract int connect(long nowNs);

    /** While open: moves what was posted, and reports what was sent; returns as {@link #doWork}. */
    protected abstract int serve(long nowNs);

    /** What the peer did not do within the time to connect. */
    protected abstract String overdue();

    /**
     * Before a loss closes the paths: reports the posts that have arrived, if that is known.
     *
     * @return the path of which no other post can have arrived; null if there is none, or if that is unknown
     */
    protected Endpoint settle() {
        return null;
    }

    /** Releases everything; called once. */
    protected abstract void release();

    /** The fault of an unexpected record. */
    protected static IllegalArgumentException unexpected(int kind) {
        return new IllegalArgumentException("unexpected control record " + kind);
    }

    protected final OutboundChannel channel() {
        return channel;
    }

    /** Reports a sent post. Not from within a post. */
    protected final void sent(long postId) {
        events.onSent(postId);
    }

    protected final Figures figures() {
        return figures;
    }

    protected final long connectDeadlineNs() {
        return connectDeadlineNs;
    }

    /** Whether a path has opened, and the paths are not closed. */
    protected final boolean isOpen() {
        return state == State.OPEN;
    }

    protected final boolean isClosed() {
        return state == State.CLOSED;
    }

    /** Makes the paths ready; a path may open later. */
    protected final void becomeReady() {
        if (state == State.CONNECTING) {
            state = State.OPEN;
            events.onReady();
        }
    }

    /** From now on the path accepts posts. */
    protected final void open(Endpoint path) {
        openCount++;
        figures.increment(TransferCounter.PATHS_OPENED);
        becomeReady();
        events.onPathOpened(path);
    }

    /** An open path is closed, and none of its posts can arrive any more that was not reported as sent. */
    protected final void lost(Endpoint path) {
        openCount--;
        figures.increment(TransferCounter.PATHS_LOST);
        events.onPathLost(path);
    }

    /** Ends all paths, and reports that, also where something is refused that they release. */
    protected final void lose(TransferFault fault, String detail) {
        Endpoint settled = isOpen() ? settle() : null;
        if (isClosed()) {
            return;
        }
        String refusal = closeAll();
        if (settled != null && refusal.isEmpty()) {
            events.onPathLost(settled);
        }
        events.onFailed(fault, detail + refusal);
    }

    /** Returns what was refused, as the end of a sentence. */
    private String closeAll() {
        try {
            close();
            return "";
        } catch (RuntimeException | Error error) {
            return "; " + LinkError.describe(error);
        }
    }

    @Override
    public final void onRecord(int kind, MemorySegment payload, long nowNs) {
        if (isClosed()) {
            return;
        }
        try {
            onPeerRecord(kind, payload, nowNs);
        } catch (IllegalArgumentException e) {
            lose(TransferFault.PROTOCOL, e.getMessage());
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
        }
    }

    @Override
    public final void onRefused(TransferFault fault, String detail) {
        lose(fault, detail);
    }

    @Override
    public final void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    @Override
    public final int doWork(long nowNs) {
        return switch (state) {
            case CONNECTING -> {
                int work = connect(nowNs);
                if (state == State.CONNECTING && nowNs - connectDeadlineNs > 0) {
                    lose(TransferFault.UNREACHABLE, overdue());
                }
                yield work;
            }
            case OPEN -> serve(nowNs);
            case CLOSED -> 0;
        };
    }

    @Override
    public final void close() {
        if (isClosed()) {
            return;
        }
        state = State.CLOSED;
        figures.add(TransferCounter.PATHS_LOST, openCount);
        release();
    }
}
