package io.kvmessenger.transfer.path;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkError;

/**
 * The paths by which one admitted peer writes to this engine through one domain: connecting, ready, closed. A transport
 * adds how they are connected, and how arrivals are taken.
 *
 * <p>Worker only. The peer must be ready within the limit. What ends by itself is reported once, when nothing can land
 * any more. No method of it is called for a page.
 */
public abstract class ReaderPaths implements InboundPaths {
    private enum State {
        /** Accepted, and the peer may not write yet. */
        CONNECTING,
        /** The peer may write. */
        READY,
        CLOSED
    }

    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final InboundChannel channel;
    private final long readyDeadlineNs;
    private State state = State.CONNECTING;
    /** Its control socket or its process has ended; what it wrote may still land. */
    private boolean peerGone;
    /** What ends the landing was refused: until it is closed once more the peer may write, and nothing is taken. */
    private boolean refused;

    private int openCount;
    /** Why the paths ended, while their end is to be reported; else null. */
    private String owedEnd;

    /** @param readyDeadlineNs when the peer must be ready */
    protected ReaderPaths(
            InboundPort port, InboundAdmission from, Figures figures, InboundChannel channel, long readyDeadlineNs) {
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.readyDeadlineNs = readyDeadlineNs;
    }

    /** Unless closed, in each duty cycle: connects, and takes what has arrived; returns the amount of work done. */
    protected abstract int advance(long nowNs);

    /** What the peer did not do within the time to be ready. */
    protected abstract String overdue();

    /** Whether something is pending that no event will signal. */
    protected abstract boolean waits();

    /**
     * Ensures that nothing of the peer lands any more, except what {@link #isCopying} covers.
     *
     * @throws IllegalStateException when that is refused: then the paths stay, and the peer may still write
     */
    protected void endLanding() {}

    /** Releases the rest; called once. */
    protected void release() {}

    protected final InboundPort port() {
        return port;
    }

    protected final InboundAdmission from() {
        return from;
    }

    protected final Figures figures() {
        return figures;
    }

    protected final InboundChannel channel() {
        return channel;
    }

    /** Whether the peer may write, or might have until it went. */
    protected final boolean isReady() {
        return state == State.READY;
    }

    protected final boolean isPeerGone() {
        return peerGone;
    }

    protected final boolean isClosed() {
        return state == State.CLOSED;
    }

    /** Reports once that the peer may write. */
    protected final void becomeReady() {
        if (state == State.CONNECTING) {
            state = State.READY;
            channel.onReady();
        }
    }

    protected final void countOpened() {
        openCount++;
        figures.increment(TransferCounter.PATHS_OPENED);
    }

    /** Counts the end of such a path; {@link #close} counts those that are left. */
    protected final void countLost() {
        openCount--;
        figures.increment(TransferCounter.PATHS_LOST);
    }

    /** The peer has broken a rule, or something of it that cannot be repaired has failed. */
    protected final void reject(TransferFault fault, String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        channel.dismiss(fault, detail);
    }

    /** Closes the paths, and reports that as soon as nothing can land any more. */
    protected final void end(String detail) {
        close();
        owedEnd = detail;
        reportEnd();
    }

    private int reportEnd() {
        if (owedEnd == null || isCopying()) {
            return 0;
        }
        String detail = owedEnd;
        owedEnd = null;
        channel.onOver(detail);
        return 1;
    }

    /** One duty cycle; returns the amount of work done. */
    public final int poll(long nowNs) {
        if (refused) {
            return 0;
        }
        try {
            return isClosed() ? reportEnd() : advanceInTime(nowNs);
        } catch (RuntimeException | Error error) {
            if (refused) {
                channel.dismiss(TransferFault.DISCONNECTED, LinkError.describe(error));
            } else {
                channel.onError(error);
            }
            return 1;
        }
    }

    /** Whether something is pending that no event will signal. */
    final boolean isWaiting() {
        return !refused && waits();
    }

    private int advanceInTime(long nowNs) {
        int work = advance(nowNs);
        if (state == State.CONNECTING && nowNs - readyDeadlineNs > 0) {
            end(overdue());
        }
        return work;
    }

    /** Whether no further duty cycle is needed. */
    public final boolean isFinished() {
        return isClosed() && owedEnd == null;
    }

    @Override
    public void stop() {
        close();
    }

    @Override
    public void onPeerGone() {
        peerGone = true;
        if (!isReady()) {
            close();
        }
    }

    @Override
    public boolean isOver() {
        return isClosed() && !isCopying();
    }

    @Override
    public final void close() {
        if (isClosed()) {
            return;
        }
        refused = true;
        endLanding();
        refused = false;
        state = State.CLOSED;
        figures.add(TransferCounter.PATHS_LOST, openCount);
        release();
        owedEnd = isCopying() ? "what was received is in place" : null;
    }
}
