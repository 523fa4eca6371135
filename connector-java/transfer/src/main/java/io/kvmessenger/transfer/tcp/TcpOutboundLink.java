package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;

/**
 * All sockets to one peer: first the control stream, then, once accepted, the data paths; ready when the peer says so.
 *
 * <p>Worker only. A data path that breaks is dialled again, and costs the link nothing as long as one comes back in time; the
 * control stream is not: a new admission needs a new link.
 */
final class TcpOutboundLink implements OutboundLink, ControlStream.Reader, TcpLane.Owner {
    /** How long the target may take to say what it has got of a broken data path. */
    static final long ANSWER_LIMIT_NS = 5_000_000_000L;

    private final EventLoop loop;
    private final LibC libC;
    private final String location;
    private final InetSocketAddress target;
    private final byte[] admissionKey;
    private final MessageQueue messages;
    private final LinkEvents events;
    private final Figures figures;
    private final int dataPathCount;
    private final long connectLimitNs;
    private final Dialer dialer;
    private final List<TcpLane> lanes = new ArrayList<>();
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment record = arena.allocate(PathRecord.LENGTH_BYTES, 8);
    private final long connectDeadlineNs;
    private ControlStream control;
    private boolean ready;
    private boolean pathless;
    private long pathDeadlineNs;
    private boolean closed;

    TcpOutboundLink(
            EventLoop loop,
            String location,
            byte[] admissionKey,
            MessageQueue messages,
            LinkEvents events,
            Figures figures,
            int dataPathCount,
            long connectLimitNs,
            long nowNs) {
        this.loop = loop;
        libC = loop.libC();
        this.location = location;
        target = SocketLocation.parse(location, loop.seals().sealing());
        this.admissionKey = admissionKey;
        this.messages = messages;
        this.events = events;
        this.figures = figures;
        this.dataPathCount = dataPathCount;
        this.connectLimitNs = connectLimitNs;
        connectDeadlineNs = nowNs + connectLimitNs;
        dialer = new Dialer(
                loop, openSocket(), location, asked -> answer(asked, Hello.CONTROL, dataPathCount), new Dialing());
    }

    /** What becomes of the first socket before it is the control stream. */
    private final class Dialing implements Dialer.Events {
        @Override
        public void onAnswered(int fd, Challenge asked, Hello said) {
            seal(fd, asked, said);
        }

        @Override
        public void onConnected(int fd) {
            try {
                control = new ControlStream(loop, fd, TcpOutboundLink.this, 0);
            } catch (IllegalStateException e) {
                libC.close(fd);
                lose(TransferFault.UNREACHABLE, e.getMessage());
            }
        }

        @Override
        public void onFailed(String detail) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public Hello answer(Challenge asked, int role, int count) {
        return Hello.answer(asked, location, role, count, admissionKey);
    }

    @Override
    public void seal(int fd, Challenge asked, Hello said) {
        loop.seals().onDialled(fd, asked, said, admissionKey);
    }

    @Override
    public EventLoop loop() {
        return loop;
    }

    @Override
    public String location() {
        return location;
    }

    @Override
    public int openSocket() {
        int fd = loop.sockets().connectInet(target.getAddress(), target.getPort());
        if (fd >= 0) {
            loop.sockets().setNoDelay(fd);
            if (target.getAddress().isLoopbackAddress()) {
                loop.sockets().chooseReno(fd);
            }
        }
        return fd;
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        switch (type) {
            case ControlStream.ACCEPTED -> onAccepted(nowNs);
            case ControlStream.READY -> onReady();
            case ControlStream.PATH_PROGRESS -> onProgress(payload, false);
            case ControlStream.PATH_ENDED -> onProgress(payload, true);
            case ControlStream.NOTICE -> {
                Notice notice = Notice.parse(payload);
                lose(notice.fault(), notice.detail());
            }
            default -> lose(TransferFault.PROTOCOL, "unexpected control record " + type);
        }
        return true;
    }

    private void onAccepted(long nowNs) {
        if (!lanes.isEmpty()) {
            lose(TransferFault.PROTOCOL, "the peer accepted twice");
            return;
        }
        for (int role = 1; role <= dataPathCount; role++) {
            TcpLane lane = new TcpLane(this, role);
            lanes.add(lane);
            lane.dial(nowNs + connectLimitNs);
        }
    }

    private void onReady() {
        boolean early = lanes.isEmpty() || !lanes.stream().allMatch(TcpLane::isConnected);
        if (ready || early) {
            lose(TransferFault.PROTOCOL, "the peer is ready too early");
            return;
        }
        ready = true;
        lanes.forEach(TcpLane::open);
        events.onReady();
    }

    private void onProgress(MemorySegment payload, boolean ended) {
        if (!ready || !PathRecord.isSound(payload, dataPathCount)) {
            lose(TransferFault.PROTOCOL, "the peer reports on a data path that does not exist");
            return;
        }
        int role = PathRecord.role(payload);
        long frames = PathRecord.frames(payload);
        if (!lanes.get(role - 1).onProgress(PathRecord.serial(payload), frames, ended)) {
            lose(TransferFault.PROTOCOL, "the peer claims " + frames + " frames of data path " + role);
        }
    }

    @Override
    public boolean tell(int type, int role, int serial) {
        return control.offer(type, PathRecord.encode(record, role, serial, 0));
    }

    @Override
    public void onConnected(TcpLane lane) {
        figures.increment(TransferCounter.PATHS_OPENED);
        if (ready) {
            lane.open();
        }
    }

    @Override
    public void onDialFailed(TcpLane lane, String detail) {
        if (!ready) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public void onOpened(TcpSendPath path) {
        events.onPathOpened(path);
    }

    @Override
    public void onBroken(TcpLane lane) {
        // What the peer said before it closed the path has probably arrived already.
        control.drain(loop.nowNs());
        if (!ready) {
            lose(TransferFault.PEER_CLOSED, "the peer broke a data path");
        }
    }

    @Override
    public void onEnded(TcpSendPath path) {
        figures.increment(TransferCounter.PATHS_LOST);
        events.onPathLost(path);
    }

    @Override
    public void onSent(long postId) {
        events.onSent(postId);
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        lose(garbage ? TransferFault.PROTOCOL : TransferFault.PEER_CLOSED, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    private void lose(TransferFault fault, String detail) {
        if (!closed) {
            close();
            events.onLost(fault, detail);
        }
    }

    @Override
    public int doWork(long nowNs) {
        if (closed) {
            return 0;
        }
        dialer.doWork();
        int work = ready ? control.sendAll(ControlStream.MESSAGE, messages) : 0;
        for (int i = 0; i < lanes.size() && !closed; i++) {
            work += lanes.get(i).doWork(nowNs, nowNs + connectLimitNs);
        }
        if (!closed) {
            checkLimits(nowNs);
        }
        return pathless && work == 0 ? LOOK_SOON : work;
    }

    private void checkLimits(long nowNs) {
        if (!ready) {
            if (nowNs - connectDeadlineNs > 0) {
                lose(TransferFault.UNREACHABLE, "no answer from " + location + " in time");
            }
            return;
        }
        boolean open = false;
        for (int i = 0; i < lanes.size(); i++) {
            open |= lanes.get(i).isOpen();
            if (lanes.get(i).isOverdue(nowNs)) {
                lose(TransferFault.PEER_CLOSED, "the peer does not say what it has got of a broken data path");
                return;
            }
        }
        if (!open && !pathless) {
            pathDeadlineNs = nowNs + connectLimitNs;
        }
        pathless = !open;
        if (pathless && nowNs - pathDeadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "no data path to " + location + " could be opened again in time");
        }
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        pathless = false;
        dialer.close();
        if (control != null) {
            control.close();
        }
        for (TcpLane lane : lanes) {
            if (lane.close()) {
                figures.increment(TransferCounter.PATHS_LOST);
            }
        }
        arena.close();
    }
}
