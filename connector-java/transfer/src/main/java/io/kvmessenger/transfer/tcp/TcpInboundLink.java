package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundLink;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * All sockets of one admitted peer: a control stream and its data paths, which live and die together.
 *
 * <p>Worker only. When one path breaks all are closed, so that the end of the admission is a proof.
 */
final class TcpInboundLink implements InboundLink, ControlStream.Reader, TcpReceivePath.Events {
    /** How long the rest of a link may take to end after its first socket did; also for the peer to read a notice. */
    static final long GOODBYE_LIMIT_NS = 1_000_000_000L;

    private final EventLoop loop;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final MemorySegment scrap;
    private final ControlStream control;
    private final TcpReceivePath[] paths;
    private int pathsOpened;
    private int pathsEnded;
    private boolean controlEnded;
    private boolean dataClosed;
    private boolean closed;
    private boolean ending;
    private long deadlineNs;

    /**
     * Takes the control socket over; all data paths have to be there by the deadline.
     *
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    TcpInboundLink(
            EventLoop loop,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            int controlFd,
            int dataPathCount,
            MemorySegment scrap,
            long deadlineNs) {
        this.loop = loop;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.scrap = scrap;
        this.deadlineNs = deadlineNs;
        paths = new TcpReceivePath[dataPathCount];
        control = new ControlStream(loop, controlFd, this, 0);
        from.claim(this);
        control.offer(ControlStream.ACCEPTED, MemorySegment.NULL);
    }

    /**
     * Takes a data socket over; false when the link has no such place.
     *
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    boolean attach(int fd, int role) {
        if (closed || dataClosed || role < 1 || role > paths.length || paths[role - 1] != null) {
            return false;
        }
        paths[role - 1] = new TcpReceivePath(loop, fd, port, from, figures, scrap, this);
        pathsOpened++;
        figures.pathsOpened.incrementAndGet();
        if (isReady()) {
            control.offer(ControlStream.READY, MemorySegment.NULL);
        }
        return true;
    }

    void onWindowClosed(OpenWindow window) {
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.onWindowClosed(window);
            }
        }
    }

    private boolean isReady() {
        return pathsOpened == paths.length;
    }

    /** Works on messages that had no room, and on time limits; returns false when the link is over. */
    boolean doWork(long nowNs) {
        try {
            return advance(nowNs);
        } catch (RuntimeException | Error error) {
            onError(error);
            return !closed;
        }
    }

    private boolean advance(long nowNs) {
        if (!closed) {
            control.resume(nowNs);
        }
        boolean late = (ending || !isReady()) && nowNs - deadlineNs > 0;
        if (!closed && late) {
            closeAll(isReady() ? "the peer broke a path" : "the peer did not open all its paths in time");
        }
        return !closed;
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        if (type == ControlStream.MESSAGE) {
            return dataClosed || port.onMessage(from, payload);
        }
        onGarbage("unexpected control record " + type);
        return true;
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        controlEnded = true;
        if (garbage) {
            figures.pathsRejected.incrementAndGet();
        }
        if (dataClosed || garbage || !isReady() || pathsEnded == paths.length) {
            closeAll(detail);
        } else {
            // Data that is on its way may still land: the data paths end by themselves.
            beginEnding(loop.nowNs());
        }
    }

    @Override
    public void onEnd(String detail, boolean clean, long nowNs) {
        pathsEnded++;
        if (!clean || (controlEnded && pathsEnded == paths.length)) {
            closeAll(detail);
        } else {
            beginEnding(nowNs);
        }
    }

    @Override
    public void onError(Throwable error) {
        if (closed) {
            // Even the closing failed: the worker cannot go on with it.
            throw new IllegalStateException("the link of " + from.admission().peerName() + " failed twice", error);
        }
        closeAll(LinkError.describe(error));
    }

    private void beginEnding(long nowNs) {
        if (!ending) {
            ending = true;
            deadlineNs = nowNs + GOODBYE_LIMIT_NS;
        }
    }

    @Override
    public void onRefused(String detail) {
        port.onRefused(from, detail);
        dismiss(TransferFault.WRITE_REFUSED, detail);
    }

    @Override
    public void onGarbage(String detail) {
        figures.pathsRejected.incrementAndGet();
        dismiss(TransferFault.PROTOCOL, detail);
    }

    @Override
    public void revoke(String detail) {
        dismiss(TransferFault.DISCONNECTED, detail);
    }

    /** Closes the data paths at once; the control stream only lives on to tell the peer why. */
    private void dismiss(TransferFault fault, String detail) {
        if (dataClosed) {
            return;
        }
        closeData(detail);
        control.offer(ControlStream.NOTICE, new Notice(fault, detail).encode());
        control.finish();
        ending = true;
        deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
    }

    private void closeData(String detail) {
        if (dataClosed) {
            return;
        }
        dataClosed = true;
        boolean ready = isReady();
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.close();
                figures.pathsLost.incrementAndGet();
            }
        }
        Arrays.fill(paths, null);
        if (ready) {
            port.onClosed(from, detail);
        } else {
            from.giveBack();
        }
    }

    private void closeAll(String detail) {
        if (!closed) {
            closed = true;
            closeData(detail);
            control.close();
        }
    }

    /** Closes everything without a word, for the end of the engine. */
    void abandon() {
        closeAll("this engine is closed");
    }
}
