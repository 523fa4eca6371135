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
 * Accepts sockets, challenges each and reads its {@link Hello}; an unproven socket gets little memory and little time.
 * Worker only.
 *
 * <p>It does not check keys: a socket with a complete hello is passed on, together with its challenge.
 */
public final class Listener {
    /** Limit on sockets without a hello; more wait in the operating system's queue. */
    public static final int PENDING_MAX = 64;
    /** A socket that has sent no hello for this long loses its place if others wait: it would keep honest peers out. */
    public static final long CROWDED_LIMIT_NS = 1_000_000_000L;
    /** Pause after a failed accept, which would be retried at once and so occupy a core. */
    public static final long ACCEPT_PAUSE_NS = 100_000_000L;
    /** How long a socket may take to send its hello. */
    public static final long HELLO_LIMIT_NS = 5_000_000_000L;

    @FunctionalInterface
    public interface Receptionist {
        /** The socket belongs to the receptionist from now on, to use or to close. Must not throw. */
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
    /** Nothing is accepted, for lack of a place. */
    private boolean full;

    private boolean closed;

    /**
     * Takes over the listening socket.
     *
     * @param mayEnter whether an accepted socket may proceed at all; if not, it is closed before a byte is read
     * @param random source of challenges; must be unpredictable
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
        if (pending.size() == PENDING_MAX && !endOldest(nowNs, CROWDED_LIMIT_NS)) {
            full = true;
            watch();
            return;
        }
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
        PendingConnection connection;
        try {
            connection = new PendingConnection(fd, nowNs);
        } catch (IllegalStateException e) {
            libC.close(fd);
            pause(nowNs);
            return;
        }
        pending.add(connection);
        connection.ask();
    }

    /** Rejects the oldest pending socket if its limit has passed and no valid hello is in its buffer. */
    private boolean endOldest(long nowNs, long limitNs) {
        PendingConnection oldest = pending.getFirst();
        if (nowNs - oldest.sinceNs <= limitNs) {
            return false;
        }
        oldest.onReady(Epoll.EPOLLIN, nowNs);
        if (!oldest.known) {
            reject(oldest);
        }
        return true;
    }

    /** Out of descriptors or memory: the pending socket would be reported again at once. */
    private void pause(long nowNs) {
        pausing = true;
        pauseEndNs = nowNs + ACCEPT_PAUSE_NS;
        watch();
    }

    private void watch() {
        if (!closed) {
            loop.change(listenKey, listenFd, pausing || full ? 0 : Epoll.EPOLLIN);
        }
    }

    /** Closes sockets whose time is over, and accepts again after a pause or when a place is free. */
    public int doWork(long nowNs) {
        if (pausing && nowNs - pauseEndNs >= 0) {
            pausing = false;
            watch();
        }
        int work = 0;
        while (!pending.isEmpty() && endOldest(nowNs, HELLO_LIMIT_NS)) {
            work++;
        }
        if (full && endOldest(nowNs, CROWDED_LIMIT_NS)) {
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
        closed = true;
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

    /** A socket that has not sent its hello. */
    private final class PendingConnection implements Pollable {
        final int fd;
        final long sinceNs;
        private final Arena arena = Arena.ofConfined();
        private final MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        private final Challenge challenge = Challenge.fresh(random);
        private final long key;
        private int readBytes;
        private boolean known;

        PendingConnection(int fd, long sinceNs) {
            this.fd = fd;
            this.sinceNs = sinceNs;
            try {
                key = loop.add(fd, Epoll.EPOLLIN, this);
            } catch (IllegalStateException e) {
                arena.close();
                throw e;
            }
        }

        /** A fresh socket has room for a challenge, so a short count means that it is broken. */
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
            long count = libC.read(fd, hello.asSlice(readBytes), wantedBytes() - readBytes);
            if (IoResult.wouldBlock(count)) {
                return;
            }
            if (count <= 0) {
                reject(this);
                return;
            }
            readBytes += (int) count;
            if (readBytes < Hello.SHORT_LENGTH_BYTES) {
                return;
            }
            Hello given = Hello.parse(hello);
            if (given == null) {
                reject(this);
            } else if (readBytes < wantedBytes()) {
                onReady(mask, nowNs);
            } else {
                forget();
                receptionist.onHello(fd, given, challenge, nowNs);
            }
        }

        private int wantedBytes() {
            return readBytes < Hello.SHORT_LENGTH_BYTES ? Hello.SHORT_LENGTH_BYTES : Hello.lengthBytes(hello);
        }

        /** The receptionist keeps the socket even if it throws: closing it here could close a descriptor twice. */
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
            if (full) {
                full = false;
                watch();
            }
        }
    }
}
