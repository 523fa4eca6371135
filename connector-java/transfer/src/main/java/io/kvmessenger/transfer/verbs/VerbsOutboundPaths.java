package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.WriterPaths;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
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
final class VerbsOutboundPaths extends WriterPaths implements VerbsLane.Owner {
    /** How soon an attempt by one of several networks is given up once another is open. */
    static final long PROBE_LIMIT_NS = 2_000_000_000L;

    private final List<Nic> nics;
    private final long connectLimitNs;
    private final List<VerbsLane> lanes = new ArrayList<>();
    private long nowNs;

    /** @throws IllegalStateException when the peer has been asked too often */
    VerbsOutboundPaths(
            List<Nic> nics,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            long connectLimitNs,
            long nowNs) {
        super(channel, events, figures, nowNs + connectLimitNs);
        this.nics = nics;
        this.connectLimitNs = connectLimitNs;
        this.nowNs = nowNs;
        request(Nic.encodeCount(nics));
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long now) {
        nowNs = now;
        if (kind == VerbsRecord.DEVICES) {
            onDevices(payload);
            return;
        }
        PathName about = PathName.parse(payload);
        if (about == null || about.network() >= lanes.size()) {
            throw new IllegalArgumentException("control record " + kind + " is about no path");
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
            throw new IllegalArgumentException("the peer said twice how many devices it has");
        }
        int networkCount = Nic.networkCount(nics.size(), Nic.parseCount(payload));
        for (int network = 0; network < networkCount; network++) {
            lanes.add(new VerbsLane(Nic.ofNetwork(nics, network), network, this));
        }
        for (int i = 0; i < lanes.size() && !isClosed(); i++) {
            lanes.get(i).open(nowNs, connectDeadlineNs());
        }
    }

    @Override
    public boolean report(int kind, MemorySegment payload) {
        return channel().report(kind, payload);
    }

    @Override
    public void drain(long now) {
        channel().drain(now);
    }

    @Override
    public void onOpened(VerbsSendPath path) {
        if (!isOpen()) {
            lanes.forEach(lane -> lane.limitOpening(nowNs + PROBE_LIMIT_NS));
        }
        open(path);
    }

    @Override
    public void onSent(long postId) {
        sent(postId);
    }

    @Override
    public void onUnopened(String detail) {
        if (!isOpen() && lanes.stream().allMatch(VerbsLane::isResting)) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public void onSettled(VerbsSendPath path, String fault) {
        lost(path);
        if (lanes.stream().noneMatch(VerbsLane::isOpen)) {
            lose(TransferFault.DISCONNECTED, fault);
        }
    }

    @Override
    public void onLost(TransferFault why, String detail) {
        lose(why, detail);
    }

    @Override
    protected int connect(long now) {
        return serve(now);
    }

    @Override
    protected String overdue() {
        return "no answer over verbs within connect_limit_seconds";
    }

    @Override
    protected int serve(long now) {
        nowNs = now;
        int work = 0;
        boolean lookSoon = lanes.isEmpty();
        for (int i = 0; i < lanes.size() && !isClosed(); i++) {
            int done = lanes.get(i).doWork(nowNs, nowNs + Math.min(connectLimitNs, PROBE_LIMIT_NS));
            lookSoon |= done == LOOK_SOON;
            work += Math.max(0, done);
        }
        return lookSoon && work == 0 ? LOOK_SOON : work;
    }

    @Override
    public boolean mayStillRead() {
        boolean may = false;
        for (VerbsLane lane : lanes) {
            may |= lane.mayStillRead();
        }
        return may;
    }

    /**
     * Closes all paths, also those beside one whose device refuses.
     *
     * @throws IllegalStateException when a device refuses: then posted memory may still be read
     */
    @Override
    protected void release() {
        IllegalStateException refused = null;
        for (VerbsLane lane : lanes) {
            try {
                lane.close();
            } catch (IllegalStateException e) {
                refused = e;
            }
        }
        if (refused != null) {
            throw refused;
        }
    }
}
