package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.path.ReaderPaths;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * All data sockets of one admitted peer.
 *
 * <p>Worker only. Progress is reported to the peer at a {@link ProgressPace}, in one record for all sockets. A socket
 * that ends is closed before the peer is told how many of its frames were taken, so that the peer may send the others
 * again; it may then open another socket in the same place. When the peer has gone, data in flight may still land: then
 * the paths are over when the last socket is.
 */
final class TcpInboundPaths extends ReaderPaths implements TcpReceivePath.Events {
    private final EventLoop loop;
    private final MemorySegment scrap;
    private final TcpReceivePath[] paths;
    /** By place: the lowest serial number that a further socket may have. */
    private final int[] serials;
    /** By place: a path that has ended, until its final progress has been sent; null if no socket came. */
    private final TcpReceivePath[] ended;
    /** By place: whether the end of a path is still to be reported. */
    private final boolean[] endsUnreported;

    private final MemorySegment record;
    /** By number of sockets: a prefix of the record buffer with as many entries. */
    private final MemorySegment[] records;

    private final ProgressPace pace = new ProgressPace();
    private int pathsOpened;
    /** Number of sockets that must be open before READY is sent. */
    private int pathsForReady;

    /** The addresses to dial. */
    private final OwedRecord accepted;

    /** The peer may write. */
    private final OwedRecord readiness;

    private boolean waits;

    /** The data sockets have to be there by the deadline: all of them, or one if the peer says so. */
    TcpInboundPaths(
            EventLoop loop,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            DataNetworks networks,
            int wishedCount,
            MemorySegment scrap,
            long readyDeadlineNs) {
        super(port, from, figures, channel, readyDeadlineNs);
        this.loop = loop;
        this.scrap = scrap;
        pathsForReady = wishedCount;
        int pathCount = DataNetworks.laneCount(wishedCount, networks.addresses().size());
        paths = new TcpReceivePath[pathCount];
        serials = new int[pathCount];
        ended = new TcpReceivePath[pathCount];
        endsUnreported = new boolean[pathCount];
        record = MemorySegment.ofArray(new long[pathCount * PathRecord.LENGTH_BYTES / Long.BYTES]);
        records = new MemorySegment[pathCount + 1];
        Arrays.setAll(records, count -> record.asSlice(0, (long) count * PathRecord.LENGTH_BYTES));
        MemorySegment acceptance = networks.encode();
        accepted = new OwedRecord(() -> channel.report(TcpRecord.ACCEPTED, acceptance));
        readiness = new OwedRecord(() -> channel.report(TcpRecord.READY, MemorySegment.NULL));
        accepted.send();
    }

    @Override
    public boolean take(int fd, int lane, int serial) {
        if (isClosed() || isPeerGone() || lane < 1 || lane > paths.length) {
            return false;
        }
        int place = lane - 1;
        if (paths[place] != null || endsUnreported[place] || serial < serials[place]) {
            return false;
        }
        paths[place] = new TcpReceivePath(loop, fd, port(), from(), figures(), scrap, this);
        serials[place] = serial + 1;
        pathsOpened++;
        countOpened();
        reportReadiness();
        return true;
    }

    /** Sends ACCEPTED and READY as they fall due. Returns false if the control socket has no room for one of them. */
    private boolean reportReadiness() {
        boolean sent = accepted.send();
        if (pathsOpened >= pathsForReady) {
            sent &= readiness.send();
            if (sent) {
                becomeReady();
            }
        }
        return sent;
    }

    void onWindowClosed(OpenWindow window) {
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.onWindowClosed(window);
            }
        }
    }

    @Override
    protected int advance(long nowNs) {
        if (isPeerGone()) {
            waits = false;
            return 0;
        }
        boolean lacksRoom = !reportReadiness();
        reportEnds();
        waits = reportProgress(nowNs) || lacksRoom;
        return 0;
    }

    @Override
    protected String overdue() {
        return "the peer did not open all its paths in time";
    }

    /** Whether a further report is due soon. */
    @Override
    protected boolean waits() {
        return waits;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == TcpRecord.PATH_BROKEN && PathRecord.isSound(payload, paths.length)) {
            onBroken(PathRecord.role(payload, 0) - 1, PathRecord.serial(payload, 0));
        } else if (kind == TcpRecord.READY_BY_ONE) {
            pathsForReady = 1;
            if (!isClosed() && !isPeerGone()) {
                reportReadiness();
            }
        } else {
            onGarbage("unexpected control record " + kind);
        }
        return true;
    }

    /** Ends the path of a socket that the peer has given up, whether or not the socket has been accepted here. */
    private void onBroken(int place, int serial) {
        if (isClosed() || isPeerGone()) {
            return;
        }
        if (!isReady()) {
            if (paths[place] != null && serial == serials[place] - 1) {
                forgetUnused(place);
            }
            return;
        }
        if (paths[place] != null && serial == serials[place] - 1) {
            endPath(place);
        } else if (paths[place] == null && serial >= serials[place]) {
            serials[place] = serial + 1;
            endsUnreported[place] = true;
        }
    }

    /** Drops a socket that broke before READY was sent: nothing was written on it, and the peer dials it again. */
    private void forgetUnused(int place) {
        paths[place].close();
        paths[place] = null;
        pathsOpened--;
        countLost();
    }

    /** Ends a path: nothing of it can land from now on; its progress is reported to the peer. */
    private void endPath(int place) {
        TcpReceivePath path = paths[place];
        paths[place] = null;
        path.close();
        countLost();
        ended[place] = path;
        endsUnreported[place] = true;
    }

    /** Reports ended paths. While a path's last bytes are being copied to a device, its progress is not final. */
    private void reportEnds() {
        for (int place = 0; place < paths.length; place++) {
            if (endsUnreported[place] && isSettled(ended[place])) {
                long frames = ended[place] == null ? 0 : ended[place].framesTaken();
                MemorySegment end = PathRecord.encode(records[1], place + 1, serials[place] - 1, frames);
                endsUnreported[place] = !channel().report(TcpRecord.PATH_ENDED, end);
                ended[place] = endsUnreported[place] ? ended[place] : null;
            }
        }
    }

    private static boolean isSettled(TcpReceivePath path) {
        return path == null || path.isSettled();
    }

    /** Returns whether there is progress to report that is not due yet. */
    private boolean reportProgress(long nowNs) {
        long frames = 0;
        long bytes = 0;
        for (TcpReceivePath path : paths) {
            if (path != null) {
                frames += path.framesUnreported();
                bytes += path.bytesUnreported();
            }
        }
        if (frames == 0) {
            pace.onReported();
            return false;
        }
        if (!pace.isDue(frames, bytes, nowNs)) {
            return true;
        }
        reportAllProgress();
        return false;
    }

    /** Reports in one record, if there is room for it now. */
    private void reportAllProgress() {
        int count = 0;
        for (int place = 0; place < paths.length; place++) {
            if (paths[place] != null && paths[place].framesUnreported() > 0) {
                PathRecord.encode(record, count++, place + 1, serials[place] - 1, paths[place].framesTaken());
            }
        }
        if (count > 0 && channel().report(TcpRecord.PATH_PROGRESS, records[count])) {
            pace.onReported();
            for (TcpReceivePath path : paths) {
                if (path != null) {
                    path.onReported();
                }
            }
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
        if (!isReady()) {
            endBeforeReady(path, detail);
            return;
        }
        endPath(Arrays.asList(paths).indexOf(path));
        if (isPeerGone() && hasNoPath()) {
            end(detail);
        }
    }

    private void endBeforeReady(TcpReceivePath path, String detail) {
        if (isPeerGone() || path.framesTaken() > 0) {
            end(detail);
        } else {
            forgetUnused(Arrays.asList(paths).indexOf(path));
        }
    }

    @Override
    public void onCopyFailed(String detail) {
        channel().dismiss(TransferFault.COPY_FAILED, detail);
    }

    @Override
    public void onError(Throwable error) {
        channel().onError(error);
    }

    @Override
    public void onRefused(String detail) {
        port().onRefused(from(), detail);
        channel().dismiss(TransferFault.WRITE_REFUSED, detail);
    }

    @Override
    public void onGarbage(String detail) {
        reject(TransferFault.PROTOCOL, detail);
    }

    /** Data in flight may still land: the sockets end by themselves. */
    @Override
    public void onPeerGone() {
        super.onPeerGone();
        if (hasNoPath()) {
            close();
        }
    }

    @Override
    public boolean isCopying() {
        for (TcpReceivePath path : ended) {
            if (!isSettled(path)) {
                return true;
            }
        }
        return false;
    }

    @Override
    protected void release() {
        waits = false;
        for (TcpReceivePath path : paths) {
            if (path != null) {
                path.close();
            }
        }
        if (!isPeerGone()) {
            // Nothing more can land: this is the last report.
            reportAllProgress();
        }
        for (int place = 0; place < paths.length; place++) {
            ended[place] = paths[place] == null ? ended[place] : paths[place];
        }
        Arrays.fill(paths, null);
    }
}
