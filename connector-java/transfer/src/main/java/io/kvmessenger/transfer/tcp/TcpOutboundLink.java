package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.LibC;
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
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/**
 * All sockets to one peer: first the control stream, then, once accepted, the data paths; ready when the peer says so.
 *
 * <p>Worker only. It does not reconnect: a new admission needs a new link.
 */
final class TcpOutboundLink implements OutboundLink, ControlStream.Reader, TcpSendPath.Events {
    /** How long a broken data path waits for the peer's notice, which says why it broke. */
    private static final long NOTICE_WAIT_NS = 200_000_000L;

    private final EventLoop loop;
    private final LibC libC;
    private final String location;
    private final InetSocketAddress target;
    private final byte[] admissionKey;
    private final MessageQueue messages;
    private final LinkEvents events;
    private final Figures figures;
    private final int dataPathCount;
    private final List<Dialer> dialers = new ArrayList<>();
    private final List<TcpSendPath> paths = new ArrayList<>();
    private final long connectDeadlineNs;
    private ControlStream control;
    private boolean ready;
    private boolean breaking;
    private long noticeDeadlineNs;
    private boolean closed;

    TcpOutboundLink(
            EventLoop loop,
            String location,
            byte[] admissionKey,
            MessageQueue messages,
            LinkEvents events,
            Figures figures,
            int dataPathCount,
            long connectDeadlineNs) {
        this.loop = loop;
        libC = loop.libC();
        this.location = location;
        target = SocketLocation.parse(location);
        this.admissionKey = admissionKey;
        this.messages = messages;
        this.events = events;
        this.figures = figures;
        this.dataPathCount = dataPathCount;
        this.connectDeadlineNs = connectDeadlineNs;
        dial(Hello.CONTROL);
    }

    private void dial(int role) {
        Function<Challenge, Hello> answer = asked -> Hello.answer(asked, location, role, dataPathCount, admissionKey);
        dialers.add(new Dialer(loop, openSocket(), location, answer, new Dialer.Events() {
            @Override
            public void onConnected(int fd) {
                connected(role, fd);
            }

            @Override
            public void onFailed(String detail) {
                lose(TransferFault.UNREACHABLE, detail);
            }
        }));
    }

    private int openSocket() {
        int fd = loop.sockets().connectInet(target.getAddress(), target.getPort());
        if (fd >= 0) {
            loop.sockets().setNoDelay(fd);
            if (target.getAddress().isLoopbackAddress()) {
                loop.sockets().chooseReno(fd);
            }
        }
        return fd;
    }

    private void connected(int role, int fd) {
        try {
            if (role == Hello.CONTROL) {
                control = new ControlStream(loop, fd, this, 0);
            } else {
                paths.add(new TcpSendPath(loop, fd, this));
                figures.pathsOpened.incrementAndGet();
            }
        } catch (IllegalStateException e) {
            libC.close(fd);
            lose(TransferFault.UNREACHABLE, e.getMessage());
        }
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        switch (type) {
            case ControlStream.ACCEPTED -> {
                for (int role = 1; role <= dataPathCount && !closed; role++) {
                    dial(role);
                }
            }
            case ControlStream.READY -> onReady();
            case ControlStream.NOTICE -> {
                Notice notice = Notice.parse(payload);
                lose(notice.fault(), notice.detail());
            }
            default -> lose(TransferFault.PROTOCOL, "unexpected control record " + type);
        }
        return true;
    }

    private void onReady() {
        if (ready || paths.size() != dataPathCount) {
            lose(TransferFault.PROTOCOL, "the peer is ready too early");
            return;
        }
        ready = true;
        paths.forEach(path -> {
            path.open();
            events.onPathOpened(path);
        });
        events.onReady();
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        lose(garbage ? TransferFault.PROTOCOL : TransferFault.PEER_CLOSED, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    @Override
    public void onSent(long postId) {
        events.onSent(postId);
    }

    @Override
    public void onBreak() {
        if (closed || breaking) {
            return;
        }
        breaking = true;
        noticeDeadlineNs = loop.nowNs() + NOTICE_WAIT_NS;
        // What the peer said before it closed the path has probably arrived already.
        control.drain(loop.nowNs());
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
        if (breaking) {
            if (nowNs - noticeDeadlineNs > 0) {
                lose(TransferFault.PEER_CLOSED, "the peer broke a data path");
            }
            return 0;
        }
        if (!ready) {
            for (int i = 0; i < dialers.size() && !closed; i++) {
                dialers.get(i).doWork();
            }
            if (!closed && nowNs - connectDeadlineNs > 0) {
                lose(TransferFault.UNREACHABLE, "no answer from " + location + " in time");
            }
            return 0;
        }
        return control.sendAll(ControlStream.MESSAGE, messages) + send();
    }

    private int send() {
        int work = 0;
        for (int i = 0; i < paths.size() && !closed && !breaking; i++) {
            work += paths.get(i).doWork();
        }
        return work;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        dialers.forEach(Dialer::close);
        if (control != null) {
            control.close();
        }
        paths.forEach(TcpSendPath::close);
        figures.pathsLost.addAndGet(paths.size());
        paths.clear();
    }
}
