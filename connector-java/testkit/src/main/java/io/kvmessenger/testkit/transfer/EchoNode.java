package io.kvmessenger.testkit.transfer;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.testkit.echo.EchoEvents;
import io.kvmessenger.testkit.echo.EchoSubject;
import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.testkit.sim.SilentTally;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.SplittableRandom;

/** A messenger without KV on an engine that a test drives; its control network reaches one other node. One thread. */
final class EchoNode implements ControlNetwork, EchoEvents, AutoCloseable {
    private static final long LIMIT_NS = 60_000_000_000L;
    /** Time stands still: what ends here, ends by an event. */
    private static final NanoClock CLOCK = () -> 0;

    private final String name;
    private final DrivenEngine driven;
    private final EchoSubject subject;
    private final Messenger messenger;
    private final Queue<Runnable> inputs = new ArrayDeque<>();
    /** Of asks: {@code arrived ID}, or {@code failed ID: REASON}. */
    final List<String> ends = new ArrayList<>();

    private EchoNode other;
    private long link;
    private boolean linked;
    /** Set by a test: what has come by the control network is not taken. */
    boolean holdsInputs;
    /** Of data paths, to or from it. */
    int pathEndCount;

    EchoNode(String name, DrivenEngine driven) {
        this.name = name;
        this.driven = driven;
        SplittableRandom random = new SplittableRandom(name.hashCode());
        PeerWarnings warnings = new PeerWarnings((level, message) -> {}, CLOCK);
        SilentTally tally = new SilentTally();
        Sessions sessions = new Sessions(
                new MessengerIdentity(name, random.nextLong(), "a secret".getBytes(StandardCharsets.UTF_8)),
                this,
                new ProtocolLimits(LIMIT_NS, LIMIT_NS, LIMIT_NS, LIMIT_NS / 10, LIMIT_NS),
                tally,
                random,
                warnings);
        TransferEngine engine = new PathEndCounting(driven.engine());
        subject = new EchoSubject("marco", LIMIT_NS, driven.region(), sessions, engine, this, CLOCK);
        messenger = new Messenger(sessions, subject, new Messenger.Ports(engine, tally, warnings, CLOCK));
    }

    /** Counts the ends of data paths as the messenger learns of them. */
    private final class PathEndCounting extends PassingTransferEngine {
        PathEndCounting(TransferEngine engine) {
            super(engine);
        }

        @Override
        public int poll(CompletionHandler handler, int limit) {
            return super.poll(
                    new PassingHandler(handler) {
                        @Override
                        public void onAdmissionClosed(Admission admission, String detail) {
                            pathEndCount++;
                            super.onAdmissionClosed(admission, detail);
                        }

                        @Override
                        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
                            pathEndCount++;
                            super.onPeerLost(peer, fault, detail);
                        }
                    },
                    limit);
        }
    }

    /** Lets the nodes reach each other. */
    static void join(EchoNode one, EchoNode another) {
        one.other = another;
        another.other = one;
    }

    DrivenEngine driven() {
        return driven;
    }

    /** Asks the other one for its first bytes. */
    void ask(long id, int lengthBytes) {
        subject.ask(id, "other", 1, lengthBytes, CLOCK.nowNs());
    }

    /** Whether nothing is held for an ask, of either side. */
    boolean isClean() {
        return subject.finished();
    }

    /** One duty cycle. */
    int doWork() {
        int work = 0;
        for (Runnable input = holdsInputs ? null : inputs.poll(); input != null; input = inputs.poll()) {
            input.run();
            work++;
        }
        return work + messenger.doWork();
    }

    @Override
    public long dial(String host, int port) {
        link++;
        if (other == null) {
            closed(link, "nothing listens");
        } else {
            opened(false);
            other.link = link;
            other.opened(true);
        }
        return link;
    }

    private void opened(boolean inbound) {
        long at = link;
        linked = true;
        inputs.add(() -> messenger.onLinkOpened(at, inbound, other == null ? "gone" : other.name));
    }

    private void closed(long at, String reason) {
        linked = false;
        inputs.add(() -> messenger.onLinkClosed(at, reason));
    }

    @Override
    public void send(long at, ControlFrame frame) {
        if (linked) {
            other.inputs.add(() -> other.messenger.onFrame(at, frame));
        }
    }

    @Override
    public void trust(long at) {}

    @Override
    public void close(long at) {
        if (linked) {
            closed(at, "closed by this side");
            other.closed(at, "closed by the other side");
        }
    }

    @Override
    public void arrived(long id) {
        ends.add("arrived " + id);
    }

    @Override
    public void failed(long id, String reason) {
        ends.add("failed " + id + ": " + reason);
    }

    /** As if its process had ended. */
    @Override
    public void close() {
        if (other != null) {
            if (other.linked) {
                other.closed(link, "its process has ended");
            }
            other.other = null;
        }
        driven.close();
    }
}
