package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
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

        void onPathLost(Endpoint path);

        void onSent(long postId);
    }

    private final Domain domain;
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

    Route(Domain domain, String location, Owner owner) {
        this.domain = domain;
        this.location = location;
        this.owner = owner;
        watch = new PathWatch(domain.silenceLimitNs());
    }

    String name() {
        return domain.name();
    }

    String location() {
        return location;
    }

    long repairLimitNs() {
        return domain.repairLimitNs();
    }

    /** The open ones. */
    List<Endpoint> paths() {
        return paths;
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
        owner.onFailed(this, unproven, fault, detail);
    }

    @Override
    public void onPathOpened(Endpoint path) {
        paths.add(path);
        if (paths.size() == 1) {
            owner.onServing(this);
        }
    }

    @Override
    public void onPathLost(Endpoint path) {
        paths.remove(path);
        owner.onPathLost(path);
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
