package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * All verbs paths to one peer: one for each network between the devices of both sides.
 *
 * <p>Worker only. A path lost while others are open is opened again after a pause. With the last one, these paths have
 * failed.
 */
final class VerbsOutboundPaths implements OutboundPaths, PeerChannel.Reader, VerbsLane.Owner {
    /** How soon an attempt by one of several networks is given up once another is open. */
    static final long PROBE_LIMIT_NS = 2_000_000_000L;

    private final List<Nic> nics;
    private final OutboundChannel channel;
    private final PathEvents events;
    private final Figures figures;
    private final long connectLimitNs;
    private final long connectDeadlineNs;
    private final List<VerbsLane> lanes = new ArrayList<>();
    private boolean ready;
    private boolean closed;
    private long nowNs;

    /** @throws IllegalStateException when the peer has been asked too often */
    VerbsOutboundPaths(
            List<Nic> nics,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            long connectLimitNs,
            long nowNs) {
        this.nics = nics;
        this.channel = channel;
        this.events = events;
        this.figures = figures;
        this.connectLimitNs = connectLimitNs;
        this.nowNs = nowNs;
        connectDeadlineNs = nowNs + connectLimitNs;
        if (!channel.open(Nic.encodeCount(nics), this)) {
            throw new IllegalStateException("the peer was asked for too many paths");
        }
    }

    @Override
    public void onRecord(int kind, MemorySegment payload, long now) {
        nowNs = now;
        if (closed) {
            return;
        }
        if (kind == VerbsRecord.DEVICES) {
            onDevices(payload);
            return;
        }
        PathName about = PathName.parse(payload);
        if (about == null || about.network() >= lanes.size()) {
            lose(TransferFault.PROTOCOL, "control record " + kind + " is about no path");
            return;
        }
        MemorySegment body = PathName.body(payload);
        String refusal = kind == VerbsRecord.PATH_REFUSED ? words(body) : "";
        lanes.get(about.network()).onRecord(about, kind, body, refusal);
    }

    private static String words(MemorySegment body) {
        return new String(body.toArray(ValueLayout.JAVA_BYTE), StandardCharsets.UTF_8);
    }

    private void onDevices(MemorySegment payload) {
        if (!lanes.isEmpty()) {
            lose(TransferFault.PROTOCOL, "the peer said twice how many devices it has");
            return;
        }
        int networkCount;
        try {
            networkCount = Nic.networkCount(nics.size(), Nic.parseCount(payload));
        } catch (IllegalArgumentException e) {
            lose(TransferFault.PROTOCOL, e.getMessage());
            return;
        }
        for (int network = 0; network < networkCount; network++) {
            lanes.add(new VerbsLane(Nic.ofNetwork(nics, network), network, this));
        }
        for (int i = 0; i < lanes.size() && !closed; i++) {
            lanes.get(i).open(nowNs, connectDeadlineNs);
        }
    }

    @Override
    public boolean report(int kind, MemorySegment payload) {
        return channel.report(kind, payload);
    }

    @Override
    public void drain(long now) {
        channel.drain(now);
    }

    @Override
    public void onOpened(VerbsSendPath path) {
        figures.increment(TransferCounter.PATHS_OPENED);
        if (!ready) {
            ready = true;
            lanes.forEach(lane -> lane.limitOpening(nowNs + PROBE_LIMIT_NS));
            events.onReady();
        }
        events.onPathOpened(path);
    }

    @Override
    public void onSent(long postId) {
        events.onSent(postId);
    }

    @Override
    public void onUnopened(String detail) {
        if (!ready && lanes.stream().allMatch(VerbsLane::isResting)) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public void onSettled(VerbsSendPath path, String fault) {
        figures.increment(TransferCounter.PATHS_LOST);
        events.onPathLost(path);
        if (lanes.stream().noneMatch(VerbsLane::isOpen)) {
            lose(TransferFault.DISCONNECTED, fault);
        }
    }

    @Override
    public void onLost(TransferFault why, String detail) {
        lose(why, detail);
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
    public int doWork(long now) {
        nowNs = now;
        int work = 0;
        boolean lookSoon = lanes.isEmpty();
        for (int i = 0; i < lanes.size() && !closed; i++) {
            int done = lanes.get(i).doWork(nowNs, nowNs + Math.min(connectLimitNs, PROBE_LIMIT_NS));
            lookSoon |= done == LOOK_SOON;
            work += Math.max(0, done);
        }
        if (closed) {
            return 0;
        }
        if (!ready && nowNs - connectDeadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "no answer over verbs within connect_limit_seconds");
            return 0;
        }
        return lookSoon && work == 0 ? LOOK_SOON : work;
    }

    /** @throws IllegalStateException when a device refuses: then posted memory may still be read */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        for (VerbsLane lane : lanes) {
            if (lane.close()) {
                figures.increment(TransferCounter.PATHS_LOST);
            }
        }
    }
}
