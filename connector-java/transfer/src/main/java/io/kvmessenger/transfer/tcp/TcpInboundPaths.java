package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * All data sockets of one admitted peer.
 *
 * <p>Worker only. A socket that ends is closed before the peer is told how many of its frames were taken, so that the peer may
 * send the others again; it may then open another in the same place. When the peer has gone, what is on its way may still land:
 * then the paths are over when the last socket is.
 */
final class TcpInboundPaths implements InboundPaths, TcpReceivePath.Events {
    private final EventLoop loop;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final MemorySegment scrap;
    private final InboundChannel channel;
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
    private boolean peerGone;
    private boolean closed;
    private final long readyDeadlineNs;

    /** All data paths have to be there by the deadline. */
    TcpInboundPaths(
            EventLoop loop,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            int pathCount,
            MemorySegment scrap,
            long readyDeadlineNs) {
        this.loop = loop;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.scrap = scrap;
        this.readyDeadlineNs = readyDeadlineNs;
        paths = new TcpReceivePath[pathCount];
        serials = new int[pathCount];
        framesTold = new long[pathCount];
        endsUntold = new boolean[pathCount];
        channel.tell(TcpRecord.ACCEPTED, MemorySegment.NULL);
    }

    @Override
    public boolean take(int fd, int lane, int serial) {
        if (closed || peerGone || lane < 1 || lane > paths.length) {
            return false;
        }
        int place = lane - 1;
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
            channel.tell(TcpRecord.READY, MemorySegment.NULL);
            channel.onReady();
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

    /** Tells the peer what was taken, and keeps the time limit. */
    void poll(long nowNs) {
        try {
            advance(nowNs);
        } catch (RuntimeException | Error error) {
            channel.onError(error);
        }
    }

    private void advance(long nowNs) {
        if (!ready && !closed && nowNs - readyDeadlineNs > 0) {
            end("the peer did not open all its paths in time");
        }
        if (!closed && !peerGone) {
            tellProgress();
        }
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == TcpRecord.PATH_BROKEN && PathRecord.isSound(payload, paths.length)) {
            onBroken(PathRecord.role(payload) - 1, PathRecord.serial(payload));
        } else {
            onGarbage("unexpected control record " + kind);
        }
        return true;
    }

    /** The peer uses this socket no more, whether it has come or not. */
    private void onBroken(int place, int serial) {
        if (closed || peerGone || !ready) {
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
                if (tell(TcpRecord.PATH_PROGRESS, place, frames)) {
                    framesTold[place] = frames;
                }
            } else if (endsUntold[place]) {
                endsUntold[place] = !tell(TcpRecord.PATH_ENDED, place, framesTold[place]);
            }
        }
    }

    private boolean tell(int type, int place, long frames) {
        return channel.tell(type, PathRecord.encode(record, place + 1, serials[place] - 1, frames));
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
            end(detail);
            return;
        }
        endPath(Arrays.asList(paths).indexOf(path));
        if (peerGone && hasNoPath()) {
            end(detail);
        }
    }

    private void end(String detail) {
        close();
        channel.onOver(detail);
    }

    @Override
    public void onError(Throwable error) {
        channel.onError(error);
    }

    @Override
    public void onRefused(String detail) {
        port.onRefused(from, detail);
        channel.dismiss(TransferFault.WRITE_REFUSED, detail);
    }

    @Override
    public void onGarbage(String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        channel.dismiss(TransferFault.PROTOCOL, detail);
    }

    @Override
    public void stop() {
        close();
    }

    /** Data that is on its way may still land: the sockets end by themselves. */
    @Override
    public void onPeerGone() {
        peerGone = true;
        if (!ready || hasNoPath()) {
            close();
        }
    }

    @Override
    public boolean isOver() {
        return closed;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.close();
                figures.increment(TransferCounter.PATHS_LOST);
            }
        }
        Arrays.fill(paths, null);
    }
}
