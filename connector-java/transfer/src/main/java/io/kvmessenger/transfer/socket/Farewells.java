package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;

/**
 * Lingering close of rejected sockets: each is sent the reason, and closed when its peer has hung up or after a time
 * limit.
 *
 * <p>Worker only. Closing at once could discard the reason before it is read.
 */
public final class Farewells {
    static final int COUNT_MAX = 64;
    static final long LIMIT_NS = 1_000_000_000L;

    private final EventLoop loop;
    private final LibC libC;
    private final ArrayDeque<Farewell> farewells = new ArrayDeque<>();

    public Farewells(EventLoop loop) {
        this.loop = loop;
        libC = loop.libC();
    }

    /** Takes over the socket; closes it without a reason if the operating system has no room for one. */
    public void say(int fd, TransferFault fault, String detail) {
        if (farewells.size() == COUNT_MAX) {
            farewells.removeFirst().stream.close();
        }
        Farewell farewell;
        try {
            farewell = new Farewell(fd, loop.nowNs() + LIMIT_NS);
        } catch (IllegalStateException e) {
            libC.close(fd);
            return;
        }
        farewells.add(farewell);
        farewell.stream.finish(ControlRecord.NOTICE, new Notice(fault, detail).encode());
    }

    public void doWork(long nowNs) {
        while (!farewells.isEmpty() && (farewells.getFirst().ended || nowNs - farewells.getFirst().deadlineNs > 0)) {
            farewells.removeFirst().stream.close();
        }
    }

    public void close() {
        farewells.forEach(farewell -> farewell.stream.close());
        farewells.clear();
    }

    private final class Farewell implements ControlStream.Reader {
        final ControlStream stream;
        final long deadlineNs;
        boolean ended;

        Farewell(int fd, long deadlineNs) {
            this.deadlineNs = deadlineNs;
            stream = new ControlStream(loop, fd, this, 0);
        }

        @Override
        public boolean onRecord(int type, MemorySegment payload, long nowNs) {
            return true;
        }

        @Override
        public void onEnd(String detail, boolean garbage) {
            close();
        }

        @Override
        public void onError(Throwable error) {
            close();
        }

        private void close() {
            ended = true;
            stream.close();
        }
    }
}
