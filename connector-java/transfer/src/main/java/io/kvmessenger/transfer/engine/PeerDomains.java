package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.link.OutboundLink;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundPaths;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * Which of the domains in common with a peer its writes take: the first, in order of preference, that has an open path.
 *
 * <p>Worker only, except where stated. A domain is opened when no earlier one has a path, or when an earlier one has had
 * none for longer than its domain may take to repair it; earlier domains are retried meanwhile. It posts nothing, and
 * ends nothing but attempts: what follows when no domain is left is its owner's.
 */
final class PeerDomains implements PeerDomain.Owner {
    interface Owner {
        /** Once: there is a domain for writes. */
        void onReady();

        /** No domain is left, or whether all writes have arrived is unknown. The owner closes the domains. */
        void onUnreachable(TransferFault fault, String detail);
    }

    private final List<PeerDomain> inOrder = new ArrayList<>(2);
    private final LongSupplier clock;
    private final Owner owner;
    /** Null before the peer has accepted it, and once closed. */
    private OutboundLink link;
    /** The domain that writes take, or took last; null before the first is ready. */
    private PeerDomain used;

    private volatile String transport = "";
    private boolean pathless;
    private long pathDeadlineNs;

    PeerDomains(LongSupplier clock, Owner owner) {
        this.clock = clock;
        this.owner = owner;
    }

    /** Adds one that is less preferred than all others. */
    void add(PeerDomain peerDomain) {
        inOrder.add(peerDomain);
    }

    boolean isEmpty() {
        return inOrder.isEmpty();
    }

    /** Any thread: the name of the transport that writes take, or took last; "" before the first is ready. */
    String transport() {
        return transport;
    }

    boolean areReady() {
        return used != null;
    }

    /** The domain that writes take, or took last; not before one is ready. */
    PeerDomain used() {
        return used;
    }

    /** The first domain with an open path, which writes take from now on; or null. */
    PeerDomain forWrites() {
        PeerDomain open = firstOpen();
        if (open != null && open != used) {
            use(open);
        }
        return open;
    }

    private void use(PeerDomain peerDomain) {
        used = peerDomain;
        transport = peerDomain.name();
    }

    /**
     * Tries the first domain.
     *
     * @param accepted through which the peer is asked
     */
    void open(OutboundLink accepted) {
        link = accepted;
        tryNext(
                TransferFault.UNREACHABLE,
                "no transport in common: " + TransferOptions.OTHER_TRANSPORT,
                clock.getAsLong());
    }

    private void tryNext(TransferFault fault, String detail, long nowNs) {
        TransferFault lastFault = fault;
        String lastDetail = detail;
        for (PeerDomain peerDomain : inOrder) {
            if (!peerDomain.isUntried()) {
                continue;
            }
            String problem = attach(peerDomain, nowNs);
            if (problem == null) {
                return;
            }
            lastFault = TransferFault.UNREACHABLE;
            lastDetail = problem;
        }
        owner.onUnreachable(lastFault, lastDetail);
    }

    /** Returns why the domain cannot be tried, or null. */
    private String attach(PeerDomain peerDomain, long nowNs) {
        try {
            peerDomain.attach(link, nowNs);
            return null;
        } catch (IllegalArgumentException | IllegalStateException e) {
            return peerDomain.name() + ": " + e.getMessage();
        } catch (RuntimeException | Error error) {
            return peerDomain.name() + ": " + LinkError.describe(error);
        }
    }

    @Override
    public void onReady(PeerDomain peerDomain) {
        if (used == null) {
            use(peerDomain);
            owner.onReady();
        }
    }

    @Override
    public void onServing(PeerDomain peerDomain) {
        for (PeerDomain other : inOrder) {
            if (other != peerDomain) {
                other.forgetTrial();
            }
        }
    }

    @Override
    public void onFailed(PeerDomain peerDomain, boolean unproven, TransferFault fault, String detail) {
        peerDomain.detach(link);
        if (unproven) {
            // Whether it arrived is unknown: sent again it might count twice, not sent again it might be missing.
            owner.onUnreachable(fault, detail);
        } else if (firstOpen() == null && !areAttaching()) {
            tryNext(fault, used == null ? peerDomain.name() + ": " + detail : detail, clock.getAsLong());
        }
    }

    /** Moves what all domains have to move, and ensures that there is one with a path. */
    int doWork(long nowNs) {
        int work = 0;
        boolean lookSoon = false;
        for (int i = 0; i < inOrder.size() && link != null; i++) {
            int done = inOrder.get(i).doWork(nowNs);
            lookSoon |= done == OutboundPaths.LOOK_SOON;
            work += Math.max(0, done);
        }
        if (used != null) {
            for (int i = 0; i < inOrder.size() && link != null; i++) {
                inOrder.get(i).giveUpSilentPaths(nowNs);
            }
            watch(nowNs);
        }
        return lookSoon && work == 0 ? OutboundPaths.LOOK_SOON : work;
    }

    /** Ensures that there is a domain, and tries to find a better one. */
    private void watch(long nowNs) {
        if (link == null) {
            return;
        }
        PeerDomain open = firstOpen();
        if (open == null && !pathless) {
            pathDeadlineNs = nowNs + used.repairLimitNs();
        }
        pathless = open == null;
        if (!pathless) {
            lookForBetter(open, nowNs);
        } else if (!areAttaching() && nowNs - pathDeadlineNs > 0) {
            tryNext(
                    TransferFault.UNREACHABLE,
                    "no data path to " + used.location() + " could be opened again in time",
                    nowNs);
        }
    }

    private void lookForBetter(PeerDomain open, long nowNs) {
        for (int i = 0; inOrder.get(i) != open; i++) {
            if (inOrder.get(i).isToBeTriedAgain(nowNs)) {
                attach(inOrder.get(i), nowNs);
            }
        }
    }

    private PeerDomain firstOpen() {
        for (int i = 0; i < inOrder.size(); i++) {
            if (!inOrder.get(i).paths().isEmpty()) {
                return inOrder.get(i);
            }
        }
        return null;
    }

    private boolean areAttaching() {
        for (int i = 0; i < inOrder.size(); i++) {
            if (inOrder.get(i).isPending()) {
                return true;
            }
        }
        return false;
    }

    /** Once closed: whether a device may still read what was to be written. */
    boolean mayStillRead(long nowNs) {
        boolean may = false;
        for (int i = 0; i < inOrder.size(); i++) {
            may |= inOrder.get(i).mayStillRead(nowNs);
        }
        return may;
    }

    /** Closes the paths of all domains: nothing is written any more. */
    void close() {
        for (int i = 0; i < inOrder.size(); i++) {
            inOrder.get(i).close();
        }
        link = null;
    }
}
