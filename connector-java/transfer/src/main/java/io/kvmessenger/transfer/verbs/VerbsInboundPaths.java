package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.path.ReaderPaths;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;

/**
 * All verbs paths by which one admitted peer writes into this engine's memory: at most one for each network.
 *
 * <p>Worker only. The peer decides when to open one; the device at each end follows from its network.
 */
final class VerbsInboundPaths extends ReaderPaths implements VerbsReceivePath.Owner {
    private final List<Nic> nics;
    /** By device and region id. */
    private final BiFunction<Nic, Integer, RemoteMemory> regions;

    /** Makes the devices' writes visible to kernels. */
    private final Runnable makeVisible;

    private final long connectLimitNs;
    private final VerbsReceivePath[] paths = new VerbsReceivePath[Endpoint.NETWORKS_MAX];
    /** Closed, but not over while the driver has their queue pairs. */
    private final List<VerbsReceivePath> closing = new ArrayList<>();
    /** By network: number of paths that the peer has named so far. */
    private final int[] serialsSeen = new int[Endpoint.NETWORKS_MAX];

    private final OwedRecord deviceCount;
    private boolean stopped;
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
        super(port, from, figures, channel, nowNs + connectLimitNs);
        this.nics = nics;
        this.regions = regions;
        this.makeVisible = makeVisible;
        this.nowNs = nowNs;
        this.connectLimitNs = connectLimitNs;
        deviceCount = new OwedRecord(() -> channel.report(VerbsRecord.DEVICES, Nic.encodeCount(nics)));
        deviceCount.send();
    }

    @Override
    protected int advance(long now) {
        nowNs = now;
        forgetClosed();
        deviceCount.send();
        int count = 0;
        try {
            for (VerbsReceivePath path : paths) {
                count += path == null || isClosed() ? 0 : path.poll(nowNs);
            }
        } catch (DeviceFault e) {
            channel().dismiss(TransferFault.COPY_FAILED, e.getMessage());
            return 1;
        } catch (IllegalStateException e) {
            channel().dismiss(TransferFault.DISCONNECTED, e.getMessage());
            return 1;
        }
        return count;
    }

    private void forgetClosed() {
        if (!closing.isEmpty()) {
            closing.removeIf(VerbsReceivePath::isOver);
        }
    }

    @Override
    protected String overdue() {
        return "no immediate of the peer came through in time";
    }

    /** Whether arrivals of the peer or a time limit are pending: no event wakes the worker for either. */
    @Override
    protected boolean waits() {
        boolean waits = !isReady() || !closing.isEmpty() || port().expectsWrites();
        for (VerbsReceivePath path : paths) {
            waits |= path != null && path.waits();
        }
        return waits;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long now) {
        nowNs = now;
        if (stopped || isClosed()) {
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
                    new VerbsReceivePath(port(), from(), about, this, nic, writer, nowNs, nowNs + connectLimitNs);
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
        return channel().report(kind, about.with(body));
    }

    @Override
    public void makeVisible() {
        makeVisible.run();
    }

    @Override
    public void onReady() {
        countOpened();
        becomeReady();
    }

    @Override
    public void dismiss(TransferFault why, String detail) {
        reject(why, detail);
    }

    @Override
    public void onOver(VerbsReceivePath path, String detail) {
        remove(path);
        if (path.isReady()) {
            countLost();
        }
        if (isPeerGone() && isOver()) {
            end(detail);
        }
    }

    private void remove(VerbsReceivePath path) {
        paths[path.name().network()] = null;
        if (!path.isOver()) {
            closing.add(path);
        }
    }

    @Override
    public void stop() {
        stopped = true;
        for (VerbsReceivePath path : paths) {
            if (path != null) {
                path.stop();
            }
        }
        close();
    }

    @Override
    public void onPeerGone() {
        super.onPeerGone();
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
        forgetClosed();
        return closing.isEmpty();
    }

    /** Whether the driver still has a queue pair by which the peer might write. */
    @Override
    public boolean isCopying() {
        forgetClosed();
        return isClosed() && !closing.isEmpty();
    }

    /** Closes all paths. One whose device refuses stays, and the error is thrown after all others are closed. */
    @Override
    protected void endLanding() {
        RuntimeException refused = null;
        for (VerbsReceivePath path : paths) {
            if (path == null) {
                continue;
            }
            try {
                path.close();
                remove(path);
            } catch (IllegalStateException e) {
                refused = e;
            }
        }
        if (refused != null) {
            throw refused;
        }
        forgetLanded();
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
