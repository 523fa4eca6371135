package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.spi.LinkError;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;

/** One outgoing socket until it is connected and has said its hello. Worker only; its time limit is its owner's. */
public final class Dialer implements Pollable {
    /** How it went; called once at most, and not from the constructor. */
    public interface Events {
        /** The socket is the listener's from now on. */
        void onConnected(int fd);

        void onFailed(String detail);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final InetSocketAddress target;
    private final Hello hello;
    private final Events events;
    private final int fd;
    private String fault;
    private long key;
    private boolean closed;

    public Dialer(EventLoop loop, InetSocketAddress target, Hello hello, Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.target = target;
        this.hello = hello;
        this.events = events;
        fd = loop.sockets().connectInet(target.getAddress(), target.getPort());
        if (fd < 0) {
            fault = words(-fd);
            return;
        }
        try {
            key = loop.add(fd, Epoll.EPOLLOUT, this);
        } catch (IllegalStateException e) {
            libC.close(fd);
            fault = "connecting to " + target + ": " + e.getMessage();
        }
    }

    /** Reports a connect that failed at once: the constructor's caller could not be called back yet. */
    public void doWork() {
        if (fault != null && !closed) {
            closed = true;
            events.onFailed(fault);
        }
    }

    @Override
    public void onReady(int mask, long nowNs) {
        int errno = loop.sockets().pendingError(fd);
        if (errno != 0) {
            fail(errno);
            return;
        }
        loop.sockets().setNoDelay(fd);
        if (target.getAddress().isLoopbackAddress()) {
            loop.sockets().chooseReno(fd);
        }
        long sent;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(Hello.LENGTH_BYTES, 8);
            hello.encode(bytes);
            sent = libC.send(fd, bytes, Hello.LENGTH_BYTES, SocketApi.MSG_NOSIGNAL);
        }
        if (sent != Hello.LENGTH_BYTES) {
            // A fresh socket has room for a hello, so a short count is a broken one.
            fail(sent < 0 ? (int) -sent : Errno.EPIPE);
            return;
        }
        closed = true;
        loop.remove(key, fd);
        events.onConnected(fd);
    }

    private void fail(int errno) {
        close();
        events.onFailed(words(errno));
    }

    private String words(int errno) {
        return "connecting to " + target + " failed with " + Errno.name(errno);
    }

    @Override
    public void onError(Throwable error) {
        close();
        events.onFailed(LinkError.describe(error));
    }

    /** Gives up; nothing happens once connected. */
    public void close() {
        if (!closed) {
            closed = true;
            if (fault == null) {
                loop.remove(key, fd);
                libC.close(fd);
            }
        }
    }
}
