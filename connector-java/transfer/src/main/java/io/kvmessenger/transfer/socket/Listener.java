package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.spi.Figures;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.random.RandomGenerator;

/**
 * Accepts sockets, challenges each and reads its {@link Hello}; an unproven socket gets little memory and little time. Worker only.
 *
 * <p>It does not look at keys: a socket that has said a whole hello is handed on, with what it was asked.
 */
public final class Listener {
    /** Sockets that have not shown their key; one more, and the oldest is closed. */
    public static final int PENDING_MAX = 64;
    /** After a refused accept, which stays possible: so long nothing is accepted, so that it does not cost a core. */
    public static final long ACCEPT_PAUSE_NS = 100_000_000L;
    /** How long a socket may take to say its hello. */
    public static final long HELLO_LIMIT_NS = 5_000_000_000L;

    /** Takes over sockets. */
    @FunctionalInterface
    public interface Receptionist {
        /** The socket is the receptionist's from now on, to use or to close; it throws nothing. */
        void onHello(int fd, Hello hello, Challenge asked, long nowNs);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final int listenFd;
    private final long listenKey;
    private final Figures figures;
    private final IntPredicate mayEnter;
    private final RandomGenerator random;
    private final Receptionist receptionist;
    private final List<PendingConnection> pending = new ArrayList<>();
    private boolean pausing;
    private long pauseEndNs;

    /**
     * Takes the listening socket over.
     *
     * @param mayEnter whether a socket that was accepted may speak at all; if not, it is closed before a byte is read
     * @param random of challenges: what it says must not be guessed
     */
    public Listener(
            EventLoop loop,
            int listenFd,
            Figures figures,
            IntPredicate mayEnter,
            RandomGenerator random,
            Receptionist receptionist) {
        this.loop = loop;
        libC = loop.libC();
        this.listenFd = listenFd;
        this.figures = figures;
        this.mayEnter = mayEnter;
        this.random = random;
        this.receptionist = receptionist;
        try {
            listenKey = loop.add(listenFd, Epoll.EPOLLIN, new Acceptor());
        } catch (IllegalStateException e) {
            libC.close(listenFd);
            throw e;
        }
    }

    private void accept(long nowNs) {
        int fd = libC.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
        if (fd < 0) {
            if (!IoResult.wouldBlock(fd)) {
                pause(nowNs);
            }
            return;
        }
        if (!mayEnter.test(fd)) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            libC.close(fd);
            return;
        }
        if (pending.size() == PENDING_MAX) {
            reject(pending.getFirst());
        }
        PendingConnection connection;
        try {
            connection = new PendingConnection(fd, nowNs + HELLO_LIMIT_NS);
        } catch (IllegalStateException e) {
            libC.close(fd);
            pause(nowNs);
            return;
        }
        pending.add(connection);
        connection.ask();
    }

    /** Out of descriptors or memory: the socket that waits would be reported again at once. */
    private void pause(long nowNs) {
        pausing = true;
        pauseEndNs = nowNs + ACCEPT_PAUSE_NS;
        loop.change(listenKey, listenFd, 0);
    }

    /** Closes those whose time is over, and accepts again after a pause. */
    public int doWork(long nowNs) {
        if (pausing && nowNs - pauseEndNs >= 0) {
            pausing = false;
            loop.change(listenKey, listenFd, Epoll.EPOLLIN);
        }
        int work = 0;
        while (!pending.isEmpty() && nowNs - pending.getFirst().deadlineNs > 0) {
            reject(pending.getFirst());
            work++;
        }
        return work;
    }

    private void reject(PendingConnection connection) {
        figures.increment(TransferCounter.PATHS_REJECTED);
        connection.forget();
        libC.close(connection.fd);
    }

    public void close() {
        loop.remove(listenKey, listenFd);
        libC.close(listenFd);
        for (PendingConnection connection : List.copyOf(pending)) {
            connection.forget();
            libC.close(connection.fd);
        }
    }

    private final class Acceptor implements Pollable {
        @Override
        public void onReady(int mask, long nowNs) {
            accept(nowNs);
        }

        @Override
        public void onError(Throwable error) {
            pause(loop.nowNs());
        }
    }

    /** A socket that has not said its hello. */
    private final class PendingConnection implements Pollable {
        final int fd;
        final long deadlineNs;
        private final Arena arena = Arena.ofConfined();
        private final MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        private final Challenge challenge = Challenge.fresh(random);
        private final long key;
        private int readBytes;
        private boolean known;

        PendingConnection(int fd, long deadlineNs) {
            this.fd = fd;
            this.deadlineNs = deadlineNs;
            try {
                key = loop.add(fd, Epoll.EPOLLIN, this);
            } catch (IllegalStateException e) {
                arena.close();
                throw e;
            }
        }

        /** A fresh socket has room for a challenge, so a short count is a broken one. */
        void ask() {
            long sent;
            try (Arena scratch = Arena.ofConfined()) {
                MemorySegment bytes = scratch.allocate(Challenge.LENGTH_BYTES, 8);
                challenge.encode(bytes);
                sent = libC.send(fd, bytes, Challenge.LENGTH_BYTES, SocketApi.MSG_NOSIGNAL);
            }
            if (sent != Challenge.LENGTH_BYTES) {
                reject(this);
            }
        }

        @Override
        public void onReady(int mask, long nowNs) {
            long count = libC.read(fd, hello.asSlice(readBytes), Hello.LENGTH_BYTES - readBytes);
            if (IoResult.wouldBlock(count)) {
                return;
            }
            if (count <= 0) {
                reject(this);
                return;
            }
            readBytes += (int) count;
            if (readBytes < Hello.LENGTH_BYTES) {
                return;
            }
            Hello said = Hello.parse(hello);
            if (said == null) {
                reject(this);
                return;
            }
            forget();
            receptionist.onHello(fd, said, challenge, nowNs);
        }

        /** A receptionist that throws keeps what it was given: closing it here could close what it has closed. */
        @Override
        public void onError(Throwable error) {
            if (!known) {
                reject(this);
            }
        }

        void forget() {
            known = true;
            loop.remove(key, fd);
            pending.remove(this);
            arena.close();
        }
    }
}
