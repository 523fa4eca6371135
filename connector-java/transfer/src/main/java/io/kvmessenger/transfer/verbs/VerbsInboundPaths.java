package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/**
 * All verbs paths by which one admitted peer writes into this engine's memory: at most one for each network.
 *
 * <p>Worker only. The peer decides when to open one; the device at each end follows from its network.
 */
final class VerbsInboundPaths implements InboundPaths, VerbsReceivePath.Owner {
    private final List<Nic> nics;
    private final InboundPort port;
    /** By device and region id. */
    private final BiFunction<Nic, Integer, RemoteMemory> regions;

    /** Makes the devices' writes visible to kernels. */
    private final Runnable makeVisible;

    private final InboundAdmission from;
    private final Figures figures;
    private final InboundChannel channel;
    private final long connectLimitNs;
    private final long readyDeadlineNs;
    private final VerbsReceivePath[] paths = new VerbsReceivePath[Endpoint.NETWORKS_MAX];
    /** Closed, but not over while the driver has their queue pairs. */
    private final List<VerbsReceivePath> closing = new ArrayList<>();
    /** By network: number of paths that the peer has named so far. */
    private final int[] serialsSeen = new int[Endpoint.NETWORKS_MAX];

    private boolean devicesReported;
    private boolean ready;
    private boolean stopped;
    private boolean peerGone;
    private boolean closed;
    /** Whether to report the end once the last closing path is closed. */
    private boolean owesEnd;

    private long nowNs;

    VerbsInboundPaths(
            List<Nic> nics,
            InboundPort port,
            BiFunction<Nic, Integer, RemoteMemory> regions,
            Runnable makeVisible,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            long nowNs,
            long connectLimitNs) {
        this.nics = nics;
        this.port = port;
        this.regions = regions;
        this.makeVisible = makeVisible;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.nowNs = nowNs;
        this.connectLimitNs = connectLimitNs;
        readyDeadlineNs = nowNs + connectLimitNs;
        reportDevices();
    }

    private void reportDevices() {
        devicesReported = devicesReported || channel.report(VerbsRecord.DEVICES, Nic.encodeCount(nics));
    }

    /** Takes what has arrived; returns the number of immediates. */
    int poll(long now) {
        nowNs = now;
        if (!closing.isEmpty()) {
            closing.removeIf(VerbsReceivePath::isOver);
        }
        if (closed) {
            return reportEnd();
        }
        try {
            return advance();
        } catch (DeviceFault e) {
            channel.dismiss(TransferFault.COPY_FAILED, e.getMessage());
            return 1;
        } catch (RuntimeException | Error error) {
            channel.onError(error);
            return 1;
        }
    }

    private int reportEnd() {
        if (!owesEnd || !closing.isEmpty()) {
            return 0;
        }
        owesEnd = false;
        channel.onOver("its queue pairs are closed");
        return 1;
    }

    private int advance() {
        reportDevices();
        int count = 0;
        for (VerbsReceivePath path : paths) {
            count += path == null || closed ? 0 : path.poll(nowNs);
        }
        if (!closed && !ready && nowNs - readyDeadlineNs > 0) {
            end("no immediate of the peer came through in time");
        }
        return count;
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    boolean waits() {
        boolean waits = !ready || !closing.isEmpty() || port.expectsWrites();
        for (VerbsReceivePath path : paths) {
            waits |= path != null && path.waits();
        }
        return waits;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long now) {
        nowNs = now;
        if (stopped || closed) {
            return true;
        }
        PathName about = PathName.parse(payload);
        if (about == null) {
            reject(TransferFault.PROTOCOL, "control record " + kind + " is about no path");
            return true;
        }
        MemorySegment body = PathName.body(payload);
        if (kind == VerbsRecord.PATH_WANTED) {
            return open(about, PairName.parse(body));
        }
        VerbsReceivePath path = paths[about.network()];
        if (path != null && path.name().equals(about)) {
            return onRecord(path, kind, body);
        }
        if (kind != VerbsRecord.PATH_CLOSED) {
            reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
        } // else it had ended by itself
        return true;
    }

    /** Returns whether the record was taken. */
    private boolean open(PathName about, PairName writer) {
        boolean isNew = about.serial() >= serialsSeen[about.network()];
        if (writer == null || paths[about.network()] != null || !isNew) {
            reject(TransferFault.PROTOCOL, "the peer names no queue pair, or wants a path that it has or had");
            return true;
        }
        Nic nic = Nic.ofNetwork(nics, about.network());
        try {
            paths[about.network()] =
                    new VerbsReceivePath(port, from, about, this, nic, writer, nowNs, nowNs + connectLimitNs);
        } catch (IllegalArgumentException | IllegalStateException e) {
            byte[] words = e.getMessage().getBytes(StandardCharsets.UTF_8);
            if (!report(VerbsRecord.PATH_REFUSED, about, MemorySegment.ofArray(words))) {
                return false; // so that the record is offered again
            }
        }
        serialsSeen[about.network()] = about.serial() + 1;
        return true;
    }

    /** Returns whether the record was taken. */
    private boolean onRecord(VerbsReceivePath path, int kind, MemorySegment body) {
        RemoteMemory wanted = kind == VerbsRecord.REGION_WANTED ? RemoteMemory.parse(body) : null;
        if (wanted != null && path.isReady()) {
            Nic nic = Nic.ofNetwork(nics, path.name().network());
            return report(
                    VerbsRecord.REGION,
                    path.name(),
                    regions.apply(nic, wanted.regionId()).encode());
        }
        if (kind == VerbsRecord.PATH_CLOSED) {
            path.close();
            onOver(path, "the peer wants it no more");
        } else if (kind != VerbsRecord.FAILED || !path.onFailed(nowNs)) {
            reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
        }
        return true;
    }

    @Override
    public boolean report(int kind, PathName about, MemorySegment body) {
        return channel.report(kind, about.with(body));
    }

    @Override
    public void makeVisible() {
        makeVisible.run();
    }

    @Override
    public void onReady() {
        figures.increment(TransferCounter.PATHS_OPENED);
        if (!ready) {
            ready = true;
            channel.onReady();
        }
    }

    @Override
    public void reject(TransferFault why, String detail) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        channel.dismiss(why, detail);
    }

    @Override
    public void onOver(VerbsReceivePath path, String detail) {
        remove(path);
        countLost(path);
        if (peerGone && isOver()) {
            end(detail);
        }
    }

    private void remove(VerbsReceivePath path) {
        paths[path.name().network()] = null;
        if (!path.isOver()) {
            closing.add(path);
        }
    }

    private void countLost(VerbsReceivePath path) {
        if (path.isReady()) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }

    private void end(String detail) {
        close();
        if (!isCopying()) {
            channel.onOver(detail);
        }
    }

    @Override
    public void stop() {
        stopped = true;
        closeAll(VerbsReceivePath::stop);
    }

    @Override
    public void onPeerGone() {
        peerGone = true;
        for (VerbsReceivePath path : paths) {
            if (path != null) {
                path.onPeerGone();
                if (path.isClosed()) {
                    remove(path);
                }
            }
        }
    }

    @Override
    public boolean isOver() {
        for (VerbsReceivePath path : paths) {
            if (path != null && !path.isOver()) {
                return false;
            }
        }
        return closing.stream().allMatch(VerbsReceivePath::isOver);
    }

    /** Whether the driver still has a queue pair by which the peer might write. */
    @Override
    public boolean isCopying() {
        return closed && owesEnd;
    }

    /** Whether nothing is left to poll, now or later. */
    boolean isFinished() {
        return !owesEnd && (closed || ((stopped || peerGone) && isOver()));
    }

    @Override
    public void close() {
        closeAll(VerbsReceivePath::close);
    }

    /** Closes all paths. One whose device refuses stays, and the error is thrown after all others are closed. */
    private void closeAll(Consumer<VerbsReceivePath> how) {
        RuntimeException refused = null;
        for (int network = 0; network < paths.length; network++) {
            VerbsReceivePath path = paths[network];
            if (path == null) {
                continue;
            }
            try {
                how.accept(path);
                remove(path);
                countLost(path);
            } catch (IllegalStateException e) {
                refused = e;
            }
        }
        if (refused != null) {
            throw refused;
        }
        forgetLanded();
        closed = true;
        owesEnd = !closing.isEmpty();
    }

    /** Ensures that uncounted writes do not appear later in pages that the engine has written meanwhile. */
    private void forgetLanded() {
        try {
            makeVisible.run();
        } catch (DeviceFault e) {
            // A context that has failed runs no kernel any more.
        }
    }
}
