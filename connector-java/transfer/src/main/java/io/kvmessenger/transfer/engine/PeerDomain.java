package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.link.OutboundLink;
import io.kvmessenger.transfer.path.Pause;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import java.util.ArrayList;
import java.util.List;

/**
 * One domain by which a peer may be reached, and the paths that are open there.
 *
 * <p>Worker only. A domain that has served and was lost is retried after a pause, which grows with each retry.
 */
final class PeerDomain implements PathEvents {
    static final long REST_MIN_NS = 1_000_000_000L;
    static final long REST_MAX_NS = 60_000_000_000L;

    /** Chooses among the domains of one peer. */
    interface Owner {
        void onReady(PeerDomain peerDomain);

        /** The domain's first path has opened. */
        void onServing(PeerDomain peerDomain);

        /** @param unproven whether something was posted to its paths of which the arrival is unknown */
        void onFailed(PeerDomain peerDomain, boolean unproven, TransferFault fault, String detail);
    }

    /** Posts the writes of one peer to the paths of all its domains. */
    interface Posts {
        void onSent(long postId);

        /** Before what the path had may be posted again. */
        void onPathLost(Endpoint path);

        /** Whether a device is still copying the oldest of what was posted: it has not reached the path yet. */
        boolean isGathering(Endpoint path);

        /** The link that a path takes. */
        LinkLoad linkOf(Domain domain, Endpoint path);

        /** Creates the distribution over paths of several networks. */
        PathSpread spread(PeerDomain peerDomain);
    }

    private final Domain domain;
    private final Figures figures;
    private final String location;
    private final PeerWrites writes;
    private final Owner owner;
    private final Posts posts;
    private List<PathLink> paths = new ArrayList<>(2);
    /** Those of the paths, each once; replaced when it changes. */
    private List<LinkLoad> links = List.of();

    private final PathWatch watch;
    private OutboundChannel channel;
    private OutboundPaths attached;
    /** Closed paths whose device may still read what was to be written; null if there are none. */
    private OutboundPaths stillReading;

    private final Pause untilAskedAgain = new Pause(REST_MIN_NS, REST_MAX_NS);
    private boolean tried;
    private boolean ready;
    private boolean hasServed;
    private final Pause pause = new Pause(REST_MIN_NS, REST_MAX_NS);
    /** Null until a path of a second network opens. */
    private PathSpread spread;

    /**
     * A domain that has not been tried.
     *
     * @param figures counters of the transport
     * @param writes those of the peer
     */
    PeerDomain(Domain domain, Figures figures, String location, PeerWrites writes, Owner owner, Posts posts) {
        this.domain = domain;
        this.figures = figures;
        this.location = location;
        this.writes = writes;
        this.owner = owner;
        this.posts = posts;
        watch = new PathWatch(domain.capabilities().silenceLimitNs());
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
        return domain.capabilities().repairLimitNs();
    }

    /** Whether its paths read such memory directly; other memory is gathered for them. */
    boolean canRead(Memory memory) {
        return domain.canRead(memory);
    }

    List<PathLink> paths() {
        return paths;
    }

    /** The links of the paths, each once; the same list while they are the same. */
    List<LinkLoad> links() {
        return links;
    }

    /** Distributes over paths of several networks; null if there is one network only. */
    PathSpread spread() {
        return spread;
    }

    /** Whether it may be tried when no other domain is left. */
    boolean isUntried() {
        return !tried && attached == null;
    }

    /** Makes the domain eligible for another attempt if it has ever been open. */
    void forgetTrial() {
        tried &= !hasServed;
    }

    /** Requested, and not answered yet. */
    boolean isPending() {
        return attached != null && !ready;
    }

    /** Whether it has been open, was lost, and its pause is over. */
    boolean isToBeTriedAgain(long nowNs) {
        return hasServed && attached == null && pause.isOver(nowNs);
    }

    /** @throws RuntimeException when it cannot be tried; it counts as tried */
    void attach(OutboundLink link, long nowNs) {
        tried = true;
        pause.begin(nowNs);
        channel = link.channel(domain);
        try {
            attached = domain.attach(channel, location, this, nowNs);
        } catch (RuntimeException | Error error) {
            detach(link); // the peer may have been asked already
            throw error;
        }
    }

    /** Whether writes wait for a path without an event to signal when a path has room. */
    boolean waits() {
        return spread != null && spread.waits();
    }

    /** Gives up silent paths. What they had is posted again once it is known that it cannot land any more. */
    void giveUpSilentPaths(long nowNs) {
        Endpoint stalled = spread == null ? null : spread.stalled(paths, nowNs);
        if (stalled != null) {
            stalled.giveUp();
        }
        List<Endpoint> silent = paths.isEmpty() ? List.of() : watch.silent(paths, writes, nowNs);
        for (int i = 0; i < silent.size() && attached != null; i++) {
            if (!posts.isGathering(silent.get(i))) {
                silent.get(i).giveUp();
            }
        }
    }

    int doWork(long nowNs) {
        return attached == null ? 0 : attached.doWork(nowNs);
    }

    @Override
    public void onReady() {
        ready = true;
        hasServed = true;
        pause.onSuccess();
        owner.onReady(this);
    }

    @Override
    public void onFailed(TransferFault fault, String detail) {
        keepReading(attached);
        attached = null;
        ready = false;
        List<PathLink> unproven = paths;
        paths = new ArrayList<>(2);
        links = List.of();
        spread = null;
        owner.onFailed(
                this,
                unproven.stream()
                        .map(PathLink::path)
                        .anyMatch(path -> writes.isUnderWay(path) || path.mayOweDelivery()),
                fault,
                detail);
    }

    @Override
    public void onPathOpened(Endpoint path) {
        paths.add(new PathLink(path, posts.linkOf(domain, path)));
        if (spread == null && path.network() > 0) {
            spread = posts.spread(this);
        }
        onPathsChanged();
        if (paths.size() == 1) {
            owner.onServing(this);
        }
    }

    @Override
    public void onPathLost(Endpoint path) {
        paths.removeIf(lost -> lost.path() == path);
        onPathsChanged();
        posts.onPathLost(path);
        figures.add(TransferCounter.WRITES_REPEATED, writes.reclaim(path));
    }

    private void onPathsChanged() {
        links = paths.stream().map(PathLink::load).distinct().toList();
        if (spread != null) {
            spread.onPathsChanged(paths);
        }
    }

    @Override
    public void onSent(long postId) {
        posts.onSent(postId);
    }

    /** Tells the peer that the paths are closed. */
    void detach(OutboundLink link) {
        if (channel != null) {
            link.detach(channel);
            channel = null;
        }
    }

    /** Closes the paths: nothing is written any more, unless a device refuses to end it. */
    void close() {
        OutboundPaths open = attached;
        attached = null;
        try {
            if (open != null) {
                open.close();
            }
        } catch (IllegalStateException e) {
            // A device that was lost refuses that: its peer ends all the same, and the worker's others go on.
        }
        keepReading(open);
        paths.clear();
        links = List.of();
    }

    private void keepReading(OutboundPaths closed) {
        if (closed != null && closed.mayStillRead()) {
            stillReading = closed;
        }
    }

    /** Whether a device may still read what was to be written. It is asked after pauses, which grow. */
    boolean mayStillRead(long nowNs) {
        if (stillReading != null && untilAskedAgain.isOver(nowNs)) {
            untilAskedAgain.begin(nowNs);
            stillReading = stillReading.mayStillRead() ? stillReading : null;
        }
        return stillReading != null;
    }
}
