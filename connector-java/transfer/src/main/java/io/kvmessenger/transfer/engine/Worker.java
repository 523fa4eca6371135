package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.agent.Agent;
import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.staging.Staging;
import java.lang.invoke.VarHandle;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;

/**
 * The agent that moves bytes: its duty cycle runs commands, peers' queues, links, domains and sockets.
 *
 * <p>Everything but {@link #execute} and {@link #wake} is called by one thread, selected by its {@link WorkerRunner}.
 * It owns no thread and never runs user code.
 */
final class Worker implements Agent {
    /** Upper bound on park time: timers are checked at least this often. */
    static final int PARK_MILLIS = 100;
    /** While the latest input came through a domain's memory, an idle duty cycle polls sockets at this interval. */
    static final long SOCKETS_REST_NS = 2_000;

    private static final int LOOK_SOON_MILLIS = 1;
    /** Peers at rest are visited at this interval, and before each sleep: what they wait for are times and losses. */
    static final long SWEEP_NS = 1_000_000;
    /** While queues and rings keep it busy, sockets are polled at this interval: each poll costs a system call. */
    private static final long SOCKETS_AGE_MAX_NS = 100_000;

    private final String roleName;
    private final Poller poller;
    private final ConcurrentLinkedQueue<Runnable> commands = new ConcurrentLinkedQueue<>();
    private final AtomicBoolean parked = new AtomicBoolean();
    private final List<Domain> domains = new ArrayList<>();
    private Links links;
    private Staging staging;
    private final List<OutboundPeer> peers = new ArrayList<>();
    /** Peers no longer in use for which a device may still read. */
    private final List<OutboundPeer> leaving = new ArrayList<>();

    private boolean lookSoon;
    private boolean lastCameInMemory;
    private long socketsAskedNs;
    /** From when on the next duty cycle visits peers at rest too. */
    private long sweepAtNs;

    Worker(String roleName, Poller poller) {
        this.roleName = roleName;
        this.poller = poller;
        socketsAskedNs = poller.nowNs();
        sweepAtNs = socketsAskedNs;
    }

    /** Sets up the worker before its first duty cycle. */
    void use(Links all, List<Domain> open, Staging copies) {
        links = all;
        domains.addAll(open);
        staging = copies;
    }

    @Override
    public String roleName() {
        return roleName;
    }

    /** Any thread: runs a command in a later duty cycle; commands keep their order. */
    void execute(Runnable command) {
        commands.add(command);
        wake();
    }

    /** Any thread: there is new work. */
    @Override
    public void wake() {
        VarHandle.fullFence();
        if (parked.getPlain() && parked.compareAndSet(true, false)) {
            poller.wake();
        }
    }

    /** Adds a peer to the duty cycle. */
    void add(OutboundPeer peer) {
        peers.add(peer);
        peer.connect(poller.nowNs());
    }

    void remove(OutboundPeer peer) {
        peers.remove(peer);
        if (!peer.isSettled()) {
            leaving.add(peer);
        }
    }

    /** The clock as read by the last duty cycle. */
    long nowNs() {
        return poller.nowNs();
    }

    /**
     * Runs one duty cycle; returns the amount of work done. Sockets are polled last and only when nothing else was
     * found, since that costs a system call; but first if they have not been polled for a while, so that no timeout
     * fires while the reply sits unread in the socket.
     */
    @Override
    public int doWork() {
        lookSoon = false;
        int work = poller.tick() - socketsAskedNs > SOCKETS_AGE_MAX_NS ? askSockets() : 0;
        work += runCommands();
        work += moveBytes(poller.nowNs());
        return work > 0 || socketsMayRest() ? work : askSockets();
    }

    private boolean socketsMayRest() {
        return lastCameInMemory && poller.nowNs() - socketsAskedNs < SOCKETS_REST_NS;
    }

    private int runCommands() {
        int work = 0;
        for (Runnable command = commands.poll(); command != null; command = commands.poll()) {
            command.run();
            work++;
        }
        return work;
    }

    private int moveBytes(long nowNs) {
        int work = 0;
        boolean sweeps = sweeps(nowNs);
        for (int i = 0; i < peers.size(); i++) {
            if (!sweeps && peers.get(i).rest().isOn()) {
                continue;
            }
            int done = peers.get(i).doWork(nowNs);
            lookSoon |= done == OutboundPaths.LOOK_SOON;
            work += Math.max(0, done);
        }
        work += settleLeaving(nowNs) + links.poll(nowNs);
        int copied = staging.poll();
        lookSoon |= copied == Domain.LOOK_SOON;
        work += Math.max(0, copied);
        for (int i = 0; i < domains.size(); i++) {
            int done = domains.get(i).poll(nowNs);
            lookSoon |= done == Domain.LOOK_SOON;
            lastCameInMemory |= done > 0;
            work += Math.max(0, done);
        }
        return work;
    }

    private boolean sweeps(long nowNs) {
        boolean sweeps = nowNs - sweepAtNs >= 0;
        if (sweeps) {
            sweepAtNs = nowNs + SWEEP_NS;
        }
        return sweeps;
    }

    private int settleLeaving(long nowNs) {
        int work = 0;
        for (int i = leaving.size() - 1; i >= 0; i--) {
            int done = leaving.get(i).doWork(nowNs);
            work += Math.max(0, done);
            lookSoon |= done == OutboundPaths.LOOK_SOON;
            if (leaving.get(i).isSettled()) {
                leaving.remove(i);
            }
        }
        return work;
    }

    private int askSockets() {
        int called = poller.poll(0);
        lastCameInMemory &= called == 0;
        socketsAskedNs = poller.nowNs();
        return called;
    }

    @Override
    public void idle(BooleanSupplier stopping) {
        park(PARK_MILLIS, stopping);
    }

    /**
     * Sleeps until an event arrives, {@link #wake} is called, or the limit has passed.
     *
     * @param awake whether there is a reason not to sleep; its producer calls {@link #wake} afterwards
     */
    void park(int limitMillis, BooleanSupplier awake) {
        arm();
        // A producer that could not see the flag yet did not wake this thread: look once more.
        if (doWork() == 0 && !awake.getAsBoolean()) {
            poller.poll(sleepMillis(limitMillis));
        }
        disarm();
    }

    /** From now on new work wakes the poller. Earlier work does not: a duty cycle has to follow before a sleep. */
    void arm() {
        sweepAtNs = poller.nowNs();
        parked.set(true);
        // Before the queues are checked: a volatile write alone is not ordered before a later acquiring read.
        VarHandle.fullFence();
        domains.forEach(Domain::arm);
    }

    /** How long to sleep after the last duty cycle. */
    int sleepMillis(int limitMillis) {
        return lookSoon ? Math.min(LOOK_SOON_MILLIS, limitMillis) : limitMillis;
    }

    void disarm() {
        parked.set(false);
        domains.forEach(Domain::disarm);
    }

    Poller poller() {
        return poller;
    }

    /** No duty cycle follows by itself: the next {@link #wake} is passed on to the poller. */
    void rest() {
        parked.set(true);
    }

    /** Ends all paths, including those of a peer that no duty cycle has added yet. */
    @Override
    public void onClose() {
        try {
            runCommands();
        } finally {
            for (OutboundPeer peer : peers) {
                peer.disconnect(TransferFault.DISCONNECTED, "this engine is closed");
            }
            // Before anything is reported as free: waits for copies in progress.
            staging.close();
            peers.forEach(OutboundPeer::settle);
            leaving.forEach(OutboundPeer::settle);
            links.close();
            domains.forEach(Domain::close);
        }
    }
}
