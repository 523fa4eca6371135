package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import java.util.ArrayList;
import java.util.List;

/**
 * One domain by which a peer may be reached, and the paths that are open there.
 *
 * <p>Worker only. One that has served and is lost is tried again after a while, for longer each time.
 */
final class Route implements PathEvents {
    static final long REST_MIN_NS = 1_000_000_000L;
    static final long REST_MAX_NS = 60_000_000_000L;

    /** The peer at its end. */
    interface Owner {
        void onReady(Route route);

        /** It has a path, and had none. */
        void onServing(Route route);

        /** What was posted to paths that are still in its list may have arrived or not. */
        void onFailed(Route route, List<Endpoint> unproven, TransferFault fault, String detail);

        void onPathLost(Route route, Endpoint path);

        void onSent(long postId);

        /** What posts to the route's paths where they are of several networks. */
        PathSpread spread(Route route);
    }

    private final Domain domain;
    private final Figures figures;
    private final String location;
    private final Owner owner;
    private List<Endpoint> paths = new ArrayList<>(2);
    private final PathWatch watch;
    private OutboundChannel channel;
    private OutboundPaths attached;
    private boolean tried;
    private boolean ready;
    private boolean hasServed;
    private long restNs = REST_MIN_NS;
    private long restEndNs;
    /** Null until a path of another network than the first opens. */
    private PathSpread spread;

    /** @param figures the transport's own */
    Route(Domain domain, Figures figures, String location, Owner owner) {
        this.domain = domain;
        this.figures = figures;
        this.location = location;
        this.owner = owner;
        watch = new PathWatch(domain.silenceLimitNs());
    }

    String name() {
        return domain.name();
    }

    Figures figures() {
        return figures;
    }

    String location() {
        return location;
    }

    long repairLimitNs() {
        return domain.repairLimitNs();
    }

    /** Whether its paths read such memory themselves; what they do not is gathered for them. */
    boolean canRead(Memory memory) {
        return domain.canRead(memory);
    }

    /** The open ones. */
    List<Endpoint> paths() {
        return paths;
    }

    /** How its paths are posted to where they are of several networks, else null. */
    PathSpread spread() {
        return spread;
    }

    /** Whether it may be taken where no other is left. */
    boolean isUntried() {
        return !tried && attached == null;
    }

    /** Another serves: where that one is lost, this one, if it has ever served, is as good as before. */
    void forgetTrial() {
        tried &= !hasServed;
    }

    /** Asked for, and not yet answered. */
    boolean isPending() {
        return attached != null && !ready;
    }

    /** Whether it has served, is lost, and has rested. */
    boolean isToBeTriedAgain(long nowNs) {
        return hasServed && attached == null && nowNs - restEndNs >= 0;
    }

    /** @throws RuntimeException when it cannot be tried; it counts as tried */
    void attach(OutboundLink link, long nowNs) {
        tried = true;
        restEndNs = nowNs + restNs;
        restNs = Math.min(2 * restNs, REST_MAX_NS);
        channel = link.channel(domain);
        attached = domain.attach(channel, location, this, nowNs);
    }

    /** Open paths of whose writes nothing was heard for too long. */
    List<Endpoint> silentPaths(WriteLedger writes, long nowNs) {
        return paths.isEmpty() ? List.of() : watch.silent(paths, writes, nowNs);
    }

    /** Whether writes wait for a path although no event may tell when one takes them. */
    boolean waits() {
        return spread != null && spread.waits();
    }

    /** An open path whose network moves nothing while another does, or null. */
    Endpoint stalledPath(long nowNs) {
        return spread == null ? null : spread.stalled(paths, nowNs);
    }

    int doWork(long nowNs) {
        return attached == null ? 0 : attached.doWork(nowNs);
    }

    @Override
    public void onReady() {
        ready = true;
        hasServed = true;
        restNs = REST_MIN_NS;
        owner.onReady(this);
    }

    @Override
    public void onFailed(TransferFault fault, String detail) {
        attached = null;
        ready = false;
        List<Endpoint> unproven = paths;
        paths = new ArrayList<>(2);
        spread = null;
        owner.onFailed(this, unproven, fault, detail);
    }

    @Override
    public void onPathOpened(Endpoint path) {
        paths.add(path);
        if (spread == null && path.network() > 0) {
            spread = owner.spread(this);
        }
        onPathsChanged();
        if (paths.size() == 1) {
            owner.onServing(this);
        }
    }

    @Override
    public void onPathLost(Endpoint path) {
        paths.remove(path);
        onPathsChanged();
        owner.onPathLost(this, path);
    }

    private void onPathsChanged() {
        if (spread != null) {
            spread.onPathsChanged(paths);
        }
    }

    @Override
    public void onSent(long postId) {
        owner.onSent(postId);
    }

    /** Tells the peer that the paths are closed. */
    void detach(OutboundLink link) {
        if (channel != null) {
            link.detach(channel);
            channel = null;
        }
    }

    /** Nothing is written any more. */
    void close() {
        if (attached != null) {
            attached.close();
            attached = null;
        }
        paths.clear();
    }
}
