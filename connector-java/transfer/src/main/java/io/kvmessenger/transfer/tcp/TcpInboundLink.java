package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferCounter;
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
 * All sockets of one admitted peer: a control stream and its data paths.
 *
 * <p>Worker only. A data path that ends is closed before the peer is told how many of its frames were taken, so that the peer
 * may send the others again; it may then open another in the same place. The end of the control stream is the end of all, so
 * that the end of the admission is a proof.
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
    /** By place: the lowest number that a socket may have. */
    private final int[] serials;
    /** By place: what the peer was told. */
    private final long[] framesTold;
    /** By place: what the end of a path is to be told by, until there is room for it. */
    private final boolean[] endsUntold;

    private final MemorySegment record = MemorySegment.ofArray(new long[PathRecord.LENGTH_BYTES / Long.BYTES]);
    private int pathsOpened;
    private boolean ready;
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
        serials = new int[dataPathCount];
        framesTold = new long[dataPathCount];
        endsUntold = new boolean[dataPathCount];
        control = new ControlStream(loop, controlFd, this, 0);
        from.claim(this);
        control.offer(ControlStream.ACCEPTED, MemorySegment.NULL);
    }

    /**
     * Takes a data socket over; false when the link has no such place.
     *
     * @param serial the socket's number among those of its role
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    boolean attach(int fd, int role, int serial) {
        if (closed || dataClosed || controlEnded || role < 1 || role > paths.length) {
            return false;
        }
        int place = role - 1;
        if (paths[place] != null || endsUntold[place] || serial < serials[place]) {
            return false;
        }
        paths[place] = new TcpReceivePath(loop, fd, port, from, figures, scrap, this);
        serials[place] = serial + 1;
        framesTold[place] = 0;
        pathsOpened++;
        figures.increment(TransferCounter.PATHS_OPENED);
        if (!ready && pathsOpened == paths.length) {
            ready = true;
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
        if (!closed && !dataClosed && !controlEnded) {
            tellProgress();
        }
        boolean late = (ending || !ready) && nowNs - deadlineNs > 0;
        if (!closed && late) {
            closeAll(ready ? "the peer broke a path" : "the peer did not open all its paths in time");
        }
        return !closed;
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        if (type == ControlStream.MESSAGE) {
            return dataClosed || port.onMessage(from, payload);
        }
        if (type == ControlStream.PATH_BROKEN && PathRecord.isSound(payload, paths.length)) {
            onBroken(PathRecord.role(payload) - 1, PathRecord.serial(payload));
            return true;
        }
        onGarbage("unexpected control record " + type);
        return true;
    }

    /** The peer uses this socket no more, whether it has come or not. */
    private void onBroken(int place, int serial) {
        if (dataClosed || controlEnded || !ready) {
            return;
        }
        if (paths[place] != null && serial == serials[place] - 1) {
            endPath(place);
        } else if (paths[place] == null && serial >= serials[place]) {
            serials[place] = serial + 1;
            framesTold[place] = 0;
            endsUntold[place] = true;
        }
    }

    /** Nothing of the path can land from now on; the peer is told what has. */
    private void endPath(int place) {
        TcpReceivePath path = paths[place];
        paths[place] = null;
        path.close();
        figures.increment(TransferCounter.PATHS_LOST);
        framesTold[place] = path.framesTaken();
        endsUntold[place] = true;
    }

    private void tellProgress() {
        for (int place = 0; place < paths.length; place++) {
            TcpReceivePath path = paths[place];
            if (path != null && path.framesTaken() != framesTold[place]) {
                long frames = path.framesTaken();
                if (tell(ControlStream.PATH_PROGRESS, place, frames)) {
                    framesTold[place] = frames;
                }
            } else if (endsUntold[place]) {
                endsUntold[place] = !tell(ControlStream.PATH_ENDED, place, framesTold[place]);
            }
        }
    }

    private boolean tell(int type, int place, long frames) {
        return control.offer(type, PathRecord.encode(record, place + 1, serials[place] - 1, frames));
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        controlEnded = true;
        if (garbage) {
            figures.increment(TransferCounter.PATHS_REJECTED);
        }
        if (dataClosed || garbage || !ready || hasNoPath()) {
            closeAll(detail);
        } else {
            // Data that is on its way may still land: the data paths end by themselves.
            ending = true;
            deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
        }
    }

    private boolean hasNoPath() {
        for (TcpReceivePath path : paths) {
            if (path != null) {
                return false;
            }
        }
        return true;
    }

    @Override
    public void onEnd(TcpReceivePath path, String detail) {
        if (!ready) {
            closeAll(detail);
            return;
        }
        endPath(Arrays.asList(paths).indexOf(path));
        if (controlEnded && hasNoPath()) {
            closeAll(detail);
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

    @Override
    public void onRefused(String detail) {
        port.onRefused(from, detail);
        dismiss(TransferFault.WRITE_REFUSED, detail);
    }

    @Override
    public void onGarbage(String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
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
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.close();
                figures.increment(TransferCounter.PATHS_LOST);
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
