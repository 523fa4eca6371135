package io.kvmessenger.transfer.link;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Pollable;

/**
 * Reports once when a peer's process has ended. Worker only. Reports nothing if the operating system provides no
 * descriptor for it.
 */
final class DeathWatch implements Pollable {
    interface Events {
        void onDeath(long nowNs);

        void onError(Throwable error);
    }

    private static final int NONE = -1;

    private final EventLoop loop;
    private final LibC libC;
    private final Events events;
    private int fd;
    private long key;

    /** @param deathFd becomes readable at the end of the process; owned by the watch from now on; negative for none */
    DeathWatch(EventLoop loop, int deathFd, Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.events = events;
        fd = deathFd < 0 ? NONE : deathFd;
        if (fd >= 0) {
            watch();
        }
    }

    private void watch() {
        try {
            key = loop.add(fd, Epoll.EPOLLIN, this);
        } catch (IllegalStateException e) {
            // Without a watch no device may write, and for other writers the end of the socket is a proof.
            libC.close(fd);
            fd = NONE;
        }
    }

    /** Whether the end of the process will be reported. */
    boolean isWatching() {
        return fd >= 0;
    }

    @Override
    public void onReady(int mask, long nowNs) {
        close();
        events.onDeath(nowNs);
    }

    @Override
    public void onError(Throwable error) {
        events.onError(error);
    }

    void close() {
        if (fd >= 0) {
            loop.remove(key, fd);
            libC.close(fd);
            fd = NONE;
        }
    }
}
