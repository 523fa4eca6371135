package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundLink;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * The control socket of one admitted peer: when the peer is ready, silent, dismissed or gone, and when that ends its
 * admission.
 *
 * <p>Worker only. It does not know how its {@link Attachments} are opened and numbered. The admission ends when all its
 * paths are over, and that is a proof; each domain defines what ends its paths. If the peer writes into this process's
 * memory, it is the end of this socket: the peer's engine unmaps before closing it, and the kernel closes a dead
 * process's sockets after its last thread has ended. It may also be the end of the peer's process, even if a child still
 * holds the socket, as no child has its mappings. If a device writes for the peer, a hang-up without a notice proves
 * nothing, and only the end of the process does. Without proof the admission does not end, however long it takes.
 */
final class AdmittedLink implements InboundLink, ControlStream.Reader, DeathWatch.Events, Attachments.Link {
    /** How long paths may take to end after the peer has gone; also how long the peer may take to read a notice. */
    static final long GOODBYE_LIMIT_NS = 1_000_000_000L;

    /** The peer abandons an attempt after the same limit; its next attempt must arrive before this side gives up. */
    static final long NEXT_TRY_NS = 1_000_000_000L;

    private enum State {
        SERVING,
        /** The peer knows why it may write no more; its paths end. */
        DISMISSED,
        /** Everything is closed except what still copies to a device. */
        CLOSING,
        CLOSED
    }

    private final EventLoop loop;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final ControlStream control;
    private final DeathWatch death;
    private final Heartbeats heartbeats;
    private final long connectLimitNs;
    private final Attachments attachments;
    private State state = State.SERVING;
    private boolean ready;
    private boolean peerGone;
    private boolean settled;
    private boolean failed;
    /** Why it is closing. */
    private String end = "";
    /** Deadline for the peer to be ready; once it has gone, for its paths to end; at last, for its socket to close. */
    private long deadlineNs;

    /**
     * Takes over the control socket; {@link #begin} follows.
     *
     * @param local whether descriptors can travel on it
     * @param heartbeats that are exchanged on it
     * @param deathFd becomes readable when the peer's process has ended; owned by the link from now on; negative for
     *     none
     * @param connectLimitNs how long the peer may take to be ready, from its last attempt
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's, and the admission
     *     free
     */
    AdmittedLink(
            EventLoop loop,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            List<Domain> domains,
            boolean local,
            Heartbeats heartbeats,
            int controlFd,
            int deathFd,
            long connectLimitNs) {
        this.loop = loop;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.heartbeats = heartbeats;
        this.connectLimitNs = connectLimitNs;
        deadlineNs = loop.nowNs() + connectLimitNs;
        death = new DeathWatch(loop, deathFd, this);
        try {
            control = new ControlStream(loop, controlFd, this, 0);
        } catch (IllegalStateException e) {
            death.close();
            throw e;
        }
        attachments = new Attachments(domains, port, from, figures, control, local, this);
    }

    /** Takes the admission into use, and lets the peer know. An error of this engine ends the link. */
    void begin() {
        try {
            from.claim(this);
            control.offer(ControlRecord.ACCEPTED, MemorySegment.NULL);
        } catch (RuntimeException | Error error) {
            onError(error);
        }
    }

    /** Processes messages that had no room, and deadlines; returns false when the link is over. */
    boolean doWork(long nowNs) {
        try {
            advance(nowNs);
        } catch (RuntimeException | Error error) {
            onError(error);
        }
        return !isClosed();
    }

    private void advance(long nowNs) {
        if (!isClosed()) {
            control.resume(nowNs);
        }
        confirmEnds();
        if (ready && isServing()) {
            control.sendAll(ControlRecord.READ, from.asked());
        }
        if (isServing() && heartbeats.exchange(control, nowNs)) {
            dismiss(TransferFault.DISCONNECTED, heartbeats.silence());
        }
        if (!isEnding() && (!ready || peerGone || settled) && nowNs - deadlineNs > 0) {
            closeAll(ready ? "the peer's paths did not end in time" : "the peer was not ready in time");
        }
    }

    private boolean isServing() {
        return state == State.SERVING && !peerGone;
    }

    private boolean isEnding() {
        return state == State.CLOSING || state == State.CLOSED;
    }

    @Override
    public boolean isClosed() {
        return state == State.CLOSED;
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        int kind = ControlRecord.kind(type);
        int number = ControlRecord.number(type);
        heartbeats.onHeard();
        if (kind == ControlRecord.ALIVE && number == 0) {
            return true;
        }
        if (kind == ControlRecord.DETACH && attachments.isKnown(number)) {
            attachments.detach(number);
            confirmEnds();
            return true;
        }
        InboundPaths paths = attachments.paths(number);
        if (kind == PeerChannel.QUIET_KIND && paths != null) {
            paths.onQuiet();
            return true;
        }
        boolean late = paths == null && attachments.isKnown(number);
        if (state != State.SERVING || (late && kind >= PeerChannel.QUIET_KIND)) {
            return true;
        }
        if (kind == ControlRecord.MESSAGE && number == 0) {
            return port.onMessage(from, payload);
        }
        if (kind == ControlRecord.READ_ENDED && number == 0 && port.onReadEnded(from, payload)) {
            return true;
        }
        if (kind == ControlRecord.ATTACH && !control.hasRoom(TransferEngine.MESSAGE_MAX_BYTES)) {
            return false; // there must be room for the answer; it is offered again
        }
        if (kind == ControlRecord.ATTACH && attachments.mayAttach(number)) {
            if (!ready && attachments.isFirstUse(number)) {
                deadlineNs = nowNs + connectLimitNs + NEXT_TRY_NS;
            }
            attachments.attach(number, Attach.parse(payload), nowNs);
            return true;
        }
        if (kind >= InboundChannel.FIRST_KIND && paths != null) {
            return paths.onRecord(kind, payload, nowNs);
        }
        figures.increment(TransferCounter.PATHS_REJECTED);
        dismiss(TransferFault.PROTOCOL, "unexpected control record " + kind);
        return true;
    }

    private void confirmEnds() {
        if (isServing()) {
            attachments.confirmEnds();
        }
    }

    /** Takes over a data socket; false when there is no place for it. */
    boolean take(int fd, Hello hello) {
        return state == State.SERVING && attachments.take(fd, hello);
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        if (!garbage) {
            if (!death.isWatching() || !attachments.outliveHangUp()) {
                onPeerGone(detail);
            }
            return;
        }
        figures.increment(TransferCounter.PATHS_REJECTED);
        dismiss(TransferFault.PROTOCOL, detail);
        readOn(detail);
    }

    @Override
    public void onDeath(long nowNs) {
        // What it sent before it died has arrived.
        control.drain(nowNs);
        if (!isClosed()) {
            onPeerGone("the peer's process has ended");
        }
    }

    private void onPeerGone(String detail) {
        peerGone = true;
        attachments.onPeerGone();
        deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
        if (attachments.areOver()) {
            closeAll(detail);
        }
    }

    /** Accepts nothing more from the peer. It may still write, so its hang-up is awaited. */
    private void readOn(String detail) {
        if (isClosed()) {
            return;
        }
        if (attachments.areOver()) {
            closeAll(detail);
        } else {
            control.discard();
        }
    }

    @Override
    public void onError(Throwable error) {
        if (failed || isClosed()) {
            // Even the remaining clean-up fails: the worker cannot continue.
            throw new IllegalStateException("the link of " + from.admission().peerName() + " failed twice", error);
        }
        failed = true;
        dismiss(TransferFault.DISCONNECTED, LinkError.describe(error));
        readOn(LinkError.describe(error));
    }

    @Override
    public void revoke(String detail) {
        dismiss(TransferFault.DISCONNECTED, detail);
    }

    /** Ends what this engine can end by itself; the control stream stays open, to send the reason and see the end. */
    @Override
    public void dismiss(TransferFault fault, String detail) {
        if (state != State.SERVING) {
            return;
        }
        state = State.DISMISSED;
        String refusal = attachments.stop();
        control.finish(ControlRecord.NOTICE, new Notice(fault, detail + refusal).encode());
        settleIfOver(detail);
    }

    private void settleIfOver(String detail) {
        if (state == State.DISMISSED && !settled && attachments.areOver()) {
            settle(detail);
            deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
        }
    }

    /** Ends the admission: nothing of the peer can land. A key that was never ready may be used again, unless revoked. */
    private void settle(String detail) {
        settled = true;
        if (!ready && from.allowsFurtherLink()) {
            from.giveBack();
        } else {
            port.onClosed(from, detail);
        }
    }

    private void closeAll(String detail) {
        if (isEnding()) {
            return;
        }
        String refusal = attachments.close();
        if (attachments.areRefused()) {
            deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS; // then it is tried again
            return;
        }
        state = State.CLOSING;
        end = detail + refusal;
        closeIfCopied();
    }

    private void closeIfCopied() {
        if (isClosed() || attachments.areCopying()) {
            return;
        }
        state = State.CLOSED;
        if (!settled) {
            settle(end);
        }
        release();
    }

    private void release() {
        death.close();
        control.close();
    }

    /** Closes everything for the end of the engine. The admission ends too, unless the peer may still be writing. */
    void abandon() {
        if (isClosed()) {
            return;
        }
        state = State.CLOSED;
        boolean proven = endPaths();
        attachments.close();
        if (proven && !settled) {
            settle("this engine has ended");
        }
        release();
    }

    /** Ends what this engine can end by itself; returns whether nothing of the peer can land afterwards. */
    private boolean endPaths() {
        return attachments.stop().isEmpty() && attachments.areOver();
    }

    @Override
    public boolean watchesProcess() {
        return death.isWatching();
    }

    @Override
    public void onReady() {
        ready = true;
    }

    @Override
    public void onOver(String detail) {
        if (state == State.CLOSING) {
            closeIfCopied();
            return;
        }
        settleIfOver(detail);
        if (peerGone && attachments.areOver()) {
            closeAll(detail);
        }
    }
}
