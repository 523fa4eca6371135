package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.spi.LinkError;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.Function;

/**
 * One outgoing socket until it is connected, has read the target's {@link Challenge} and has answered it. Worker only;
 * its owner limits its time.
 */
public final class Dialer implements Pollable {
    /** Reports the result; called at most once, and not from the constructor. */
    public interface Events {
        /** The challenge is answered; from here on the socket may be sealed. */
        default void onAnswered(int fd, Challenge asked, Hello given) {}

        /** The socket belongs to the listener from now on. */
        void onConnected(int fd);

        void onFailed(String detail);

        /** The target refused for lack of room, or closed the socket without a reason: another dial may succeed. */
        default void onTurnedAway(String detail) {
            onFailed(detail);
        }
    }

    private final EventLoop loop;
    private final LibC libC;
    private final String target;
    private final Function<Challenge, Hello> answer;
    private final Events events;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment challenge = arena.allocate(Challenge.LENGTH_BYTES, 8);
    private final int fd;
    private int readBytes;
    private boolean connected;
    private String fault;
    /** Whether the queue of the target's listener was full. */
    private boolean crowded;

    private long key;
    private boolean closed;

    /**
     * Takes over the socket.
     *
     * @param fd a connecting socket, or {@code -errno} of one that could not start to connect
     */
    public Dialer(EventLoop loop, int fd, String target, Function<Challenge, Hello> answer, Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.fd = fd;
        this.target = target;
        this.answer = answer;
        this.events = events;
        if (fd < 0) {
            fault = words(-fd);
            crowded = fd == -Errno.EAGAIN;
            return;
        }
        try {
            key = loop.add(fd, Epoll.EPOLLOUT, this);
        } catch (IllegalStateException e) {
            libC.close(fd);
            fault = "connecting to " + target + ": " + e.getMessage();
        }
    }

    /** Reports a connect that failed at once, when the constructor's caller could not be called back yet. */
    public void doWork() {
        if (fault != null && !closed) {
            close();
            report(fault, crowded);
        }
    }

    private void report(String detail, boolean again) {
        if (again) {
            events.onTurnedAway(detail);
        } else {
            events.onFailed(detail);
        }
    }

    @Override
    public void onReady(int mask, long nowNs) {
        if (!connected) {
            int errno = loop.sockets().pendingError(fd);
            if (errno != 0) {
                fail(words(errno));
                return;
            }
            connected = true;
            loop.change(key, fd, Epoll.EPOLLIN);
        } else if (read()) {
            reply();
        }
    }

    /** Whether the challenge has been read completely. */
    private boolean read() {
        long count = libC.read(fd, challenge.asSlice(readBytes), Challenge.LENGTH_BYTES - readBytes);
        if (IoResult.wouldBlock(count)) {
            return false;
        }
        if (count <= 0) {
            close();
            report("connecting to " + target + ": " + IoResult.endOf(count), true);
            return false;
        }
        readBytes += (int) count;
        return readBytes == Challenge.LENGTH_BYTES;
    }

    private void reply() {
        Challenge asked = Challenge.parse(challenge);
        if (asked == null) {
            fail("what listens at " + target + " is no data path of a messenger");
            return;
        }
        if (!Hello.speaks(asked.version(), asked.newestVersion())) {
            fail("connecting to " + target + ": " + Hello.versionFault(asked.version(), asked.newestVersion()));
            return;
        }
        Hello given = answer.apply(asked);
        long sent = send(given);
        if (sent != given.lengthBytes()) {
            // A fresh socket has room for a hello: the target has closed it, as it does where a hello comes too late.
            close();
            report(words(sent < 0 ? (int) -sent : Errno.EPIPE), true);
            return;
        }
        events.onAnswered(fd, asked, given);
        loop.remove(key, fd);
        release();
        events.onConnected(fd);
    }

    private long send(Hello hello) {
        try (Arena scratch = Arena.ofConfined()) {
            MemorySegment bytes = scratch.allocate(hello.lengthBytes(), 8);
            hello.encode(bytes);
            return libC.send(fd, bytes, hello.lengthBytes(), SocketApi.MSG_NOSIGNAL);
        }
    }

    private void fail(String detail) {
        close();
        events.onFailed(detail);
    }

    private String words(int errno) {
        return "connecting to " + target + " failed with " + Errno.name(errno);
    }

    @Override
    public void onError(Throwable error) {
        fail(LinkError.describe(error));
    }

    /** Gives up; has no effect once connected. */
    public void close() {
        if (closed) {
            return;
        }
        if (fault == null) {
            loop.remove(key, fd);
            libC.close(fd);
        }
        release();
    }

    private void release() {
        closed = true;
        arena.close();
    }
}
