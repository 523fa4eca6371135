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
 * The control socket of one admitted peer, and the paths of domains that the peer has opened through it.
 *
 * <p>Worker only. The admission ends when all its paths are over, and that is a proof; each domain defines what ends
 * its paths. If the peer writes into this process's memory, it is the end of this socket: the peer's engine unmaps
 * before closing it, and the kernel closes a dead process's sockets after its last thread has ended. It may also be the
 * end of the peer's process, even if a child still holds the socket, as no child has its mappings. If a device writes
 * for the peer, a hang-up without a notice proves nothing, and only the end of the process does. Without proof the
 * admission does not end, however long it takes.
 */
final class AdmittedLink implements InboundLink, ControlStream.Reader, DeathWatch.Events {
    /** How long paths may take to end after the peer has gone; also how long the peer may take to read a notice. */
    static final long GOODBYE_LIMIT_NS = 1_000_000_000L;

    /** The peer abandons an attempt after the same limit; its next attempt must arrive before this side gives up. */
    static final long NEXT_TRY_NS = 1_000_000_000L;

    /** How many attachments a peer may have at a time. */
    static final int ATTACHMENTS_MAX = 32;

    private final EventLoop loop;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final List<Domain> domains;
    private final ControlStream control;
    private final DeathWatch death;
    private final boolean local;
    private final Heartbeats heartbeats;
    private final long connectLimitNs;
    private final Attachment[] attachments = new Attachment[ATTACHMENTS_MAX];
    private final TargetNumbers numbers = new TargetNumbers();
    private boolean ready;
    private boolean peerGone;
    private boolean dismissed;
    private boolean settled;
    private boolean failed;
    private boolean closed;
    /** The reason, once everything is closed except what still copies to a device; null before. */
    private String closing;
    /** Deadline for the peer to be ready; once it has gone, for its paths to end; at last, for its socket to close. */
    private long deadlineNs;

    /**
     * Takes over the control socket.
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
        this.domains = domains;
        this.local = local;
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
        from.claim(this);
        control.offer(ControlRecord.ACCEPTED, MemorySegment.NULL);
    }

    /** Processes messages that had no room, and deadlines; returns false when the link is over. */
    boolean doWork(long nowNs) {
        try {
            advance(nowNs);
        } catch (RuntimeException | Error error) {
            onError(error);
        }
        return !closed;
    }

    private void advance(long nowNs) {
        if (!closed) {
            control.resume(nowNs);
        }
        confirmEnds();
        if (ready && !closed && !dismissed && !peerGone) {
            control.sendAll(ControlRecord.READ, from.asked());
        }
        if (!closed && closing == null && !dismissed && !peerGone && heartbeats.exchange(control, nowNs)) {
            dismiss(TransferFault.DISCONNECTED, heartbeats.silence());
        }
        if (!closed && closing == null && (!ready || peerGone || settled) && nowNs - deadlineNs > 0) {
            closeAll(ready ? "the peer's paths did not end in time" : "the peer was not ready in time");
        }
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        int kind = ControlRecord.kind(type);
        int number = ControlRecord.number(type);
        heartbeats.onHeard();
        if (kind == ControlRecord.ALIVE && number == 0) {
            return true;
        }
        Attachment attachment = number < ATTACHMENTS_MAX ? attachments[number] : null;
        if (kind == ControlRecord.DETACH && numbers.isKnown(number)) {
            detach(number);
            return true;
        }
        if (kind == PeerChannel.QUIET_KIND && attachment != null) {
            attachment.paths.onQuiet();
            return true;
        }
        boolean late = attachment == null && numbers.isKnown(number);
        if (dismissed || closing != null || (late && kind >= PeerChannel.QUIET_KIND)) {
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
        if (kind == ControlRecord.ATTACH && attachment == null && numbers.attach(number)) {
            attach(number, Attach.parse(payload), nowNs);
            return true;
        }
        if (kind >= InboundChannel.FIRST_KIND && attachment != null) {
            return attachment.paths.onRecord(kind, payload, nowNs);
        }
        figures.increment(TransferCounter.PATHS_REJECTED);
        dismiss(TransferFault.PROTOCOL, "unexpected control record " + kind);
        return true;
    }

    private void detach(int number) {
        numbers.detach(number);
        if (attachments[number] == null) {
            numbers.end(number);
        } else {
            attachments[number].end("the peer uses its paths no more");
        }
        confirmEnds();
    }

    /** Lets the peer use numbers again whose attachments are over. */
    private void confirmEnds() {
        if (numbers.owes() && !closed && !dismissed && !peerGone && closing == null) {
            numbers.sendOwed(type -> control.offer(type, MemorySegment.NULL));
        }
    }

    private void attach(int number, Attach wanted, long nowNs) {
        if (!ready && numbers.earlierUses(number) == 0) {
            deadlineNs = nowNs + connectLimitNs + NEXT_TRY_NS;
        }
        Attachment attachment = new Attachment(number);
        String refusal = wanted == null ? "the peer wants no transport" : attachment.open(wanted, nowNs);
        if (refusal == null) {
            attachments[attachment.number] = attachment;
        } else {
            figures.increment(TransferCounter.PATHS_REJECTED);
            control.offer(
                    ControlRecord.type(ControlRecord.REFUSED, attachment.number),
                    new Notice(TransferFault.UNREACHABLE, refusal).encode());
        }
    }

    /** Takes over a data socket; false when there is no place for it. */
    boolean take(int fd, Hello hello) {
        int name = Hello.attachment(hello.role());
        int number = Attach.number(name);
        Attachment attachment = closed || dismissed || number >= ATTACHMENTS_MAX ? null : attachments[number];
        return attachment != null
                && attachment.number() == name
                && attachment.paths.take(fd, Hello.lane(hello.role()), hello.count());
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        if (!garbage) {
            if (!death.isWatching() || !outlivesHangUp()) {
                onPeerGone(detail);
            }
            return;
        }
        figures.increment(TransferCounter.PATHS_REJECTED);
        dismiss(TransferFault.PROTOCOL, detail);
        readOn(detail);
    }

    /** Whether the end of the peer's process is still awaited, and is the proof that counts. */
    private boolean outlivesHangUp() {
        for (Attachment attachment : attachments) {
            if (attachment != null && attachment.paths.outlivesHangUp()) {
                return true;
            }
        }
        return false;
    }

    @Override
    public void onDeath(long nowNs) {
        // What it sent before it died has arrived.
        control.drain(nowNs);
        if (!closed) {
            onPeerGone("the peer's process has ended");
        }
    }

    private void onPeerGone(String detail) {
        peerGone = true;
        for (Attachment attachment : attachments) {
            if (attachment != null) {
                attachment.paths.onPeerGone();
            }
        }
        deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
        if (allOver()) {
            closeAll(detail);
        }
    }

    /** Accepts nothing more from the peer. It may still write, so its hang-up is awaited. */
    private void readOn(String detail) {
        if (closed) {
            return;
        }
        if (allOver()) {
            closeAll(detail);
        } else {
            control.discard();
        }
    }

    @Override
    public void onError(Throwable error) {
        if (failed || closed) {
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
    private void dismiss(TransferFault fault, String detail) {
        if (dismissed || closed || closing != null) {
            return;
        }
        dismissed = true;
        stopPaths();
        control.offer(ControlRecord.NOTICE, new Notice(fault, detail).encode());
        control.finish();
        settleIfOver(detail);
    }

    private boolean allOver() {
        for (Attachment attachment : attachments) {
            if (attachment != null && !attachment.paths.isOver()) {
                return false;
            }
        }
        return true;
    }

    private void settleIfOver(String detail) {
        if (dismissed && !settled && allOver()) {
            settle(detail);
            deadlineNs = loop.nowNs() + GOODBYE_LIMIT_NS;
        }
    }

    /** Ends the admission: nothing of the peer can land any more. A key that was never ready may be used again. */
    private void settle(String detail) {
        settled = true;
        if (ready) {
            port.onClosed(from, detail);
        } else {
            from.giveBack();
        }
    }

    private void closeAll(String detail) {
        if (closed || closing != null) {
            return;
        }
        closing = detail;
        closing += closePaths();
        closeIfCopied();
    }

    private void closeIfCopied() {
        if (closed || isCopying()) {
            return;
        }
        closed = true;
        if (!settled) {
            settle(closing);
        }
        release();
    }

    private boolean isCopying() {
        for (Attachment attachment : attachments) {
            if (attachment != null && attachment.paths.isCopying()) {
                return true;
            }
        }
        return false;
    }

    /** Closes all paths, even if one fails to close properly; returns what went wrong. */
    private String closePaths() {
        String faults = "";
        for (Attachment attachment : attachments) {
            if (attachment == null) {
                continue;
            }
            try {
                attachment.paths.close();
            } catch (RuntimeException | Error error) {
                faults += "; " + LinkError.describe(error);
                attachment.paths.close();
            }
        }
        return faults;
    }

    private void release() {
        death.close();
        control.close();
    }

    /** Closes everything for the end of the engine. The admission ends too, unless the peer may still be writing. */
    void abandon() {
        if (closed) {
            return;
        }
        closed = true;
        boolean proven = endPaths();
        closePaths();
        if (proven && !settled) {
            settle("this engine has ended");
        }
        release();
    }

    /** Ends what this engine can end by itself; returns whether nothing of the peer can land afterwards. */
    private boolean endPaths() {
        try {
            stopPaths();
        } catch (RuntimeException | Error error) {
            return false;
        }
        return allOver();
    }

    private void stopPaths() {
        for (Attachment attachment : attachments) {
            if (attachment != null) {
                attachment.paths.stop();
            }
        }
    }

    /** The paths of one domain, and their end of the control socket. */
    private final class Attachment implements InboundChannel {
        final int number;
        /** Of this use of the number. */
        private final int name;
        /** Not null once opened. */
        InboundPaths paths;
        /** The number may soon belong to another. */
        private boolean over;

        Attachment(int number) {
            this.number = number;
            name = Attach.name(number, numbers.earlierUses(number));
        }

        /** Returns why the paths cannot be opened, or null. */
        String open(Attach wanted, long nowNs) {
            for (Domain domain : domains) {
                if (!domain.name().equals(wanted.transport())) {
                    continue;
                }
                if (!port.reachesAll(domain)) {
                    return wanted.transport() + " reaches not all regions of this engine";
                }
                try {
                    paths = domain.admit(this, from, wanted.wish(), nowNs);
                    return null;
                } catch (IllegalArgumentException | IllegalStateException e) {
                    return e.getMessage();
                }
            }
            return "this engine has no transport " + wanted.transport();
        }

        @Override
        public int number() {
            return name;
        }

        @Override
        public boolean watchesProcess() {
            return death.isWatching();
        }

        @Override
        public boolean carriesDescriptors() {
            return local;
        }

        @Override
        public boolean report(int kind, MemorySegment payload) {
            return !over && control.offer(ControlRecord.type(kind, number), payload);
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            return !over && control.offerDescriptors(ControlRecord.type(kind, number), payload, descriptors);
        }

        @Override
        public void onReady() {
            ready = true;
        }

        @Override
        public void onOver(String detail) {
            if (closed) {
                return;
            }
            over = true;
            attachments[number] = null;
            numbers.end(number);
            if (closing != null) {
                closeIfCopied();
                return;
            }
            settleIfOver(detail);
            if (peerGone && allOver()) {
                closeAll(detail);
            }
        }

        void end(String detail) {
            paths.close();
            if (!paths.isCopying()) {
                onOver(detail);
            }
        }

        @Override
        public void dismiss(TransferFault fault, String detail) {
            AdmittedLink.this.dismiss(fault, detail);
        }

        @Override
        public void onError(Throwable error) {
            AdmittedLink.this.onError(error);
        }
    }
}
