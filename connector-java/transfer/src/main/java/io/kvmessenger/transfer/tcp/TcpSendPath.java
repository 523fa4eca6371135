package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.socket.Pollable;
import io.kvmessenger.transfer.spi.Batch;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.RequestQueue;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * One data socket to a peer: takes batches from the peer's queue and writes header and pages with one gathering call.
 *
 * <p>Worker only. It does not decide what a broken socket means for the link.
 */
final class TcpSendPath implements Pollable {
    /** What one turn may send before other peers get theirs. */
    static final long TURN_BYTES = 2 << 20;

    /** What the link is told. */
    interface Events {
        void onBreak();

        /** Working on the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final int fd;
    private final RequestQueue queue;
    private final Figures figures;
    private final Events events;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES, 8);
    private final MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
    private final MemorySegment scrap = arena.allocate(64);
    private final VectorRun run = new VectorRun(arena, TcpFrame.PAGES_MAX + 1);
    private final Batch batch = new Batch();
    private final long key;
    private boolean sending;
    private boolean writable;
    private boolean closed;
    private boolean broken;

    /**
     * Takes the socket over.
     *
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    TcpSendPath(EventLoop loop, int fd, RequestQueue queue, Figures figures, Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.fd = fd;
        this.queue = queue;
        this.figures = figures;
        this.events = events;
        try {
            key = loop.add(fd, Epoll.EPOLLIN | Epoll.EPOLLOUT | Epoll.EPOLLET, this);
        } catch (IllegalStateException e) {
            arena.close();
            throw e;
        }
    }

    @Override
    public void onReady(int mask, long nowNs) {
        writable = !broken;
        // The peer says nothing on a data path: all that can be read is its end.
        if ((mask & (Epoll.EPOLLIN | Epoll.EPOLLHUP | Epoll.EPOLLERR)) != 0) {
            long count = libC.read(fd, scrap, scrap.byteSize());
            if (!IoResult.wouldBlock(count)) {
                broke();
            }
        }
    }

    @Override
    public void onError(Throwable error) {
        events.onError(error);
    }

    /** Sends until the socket is full, the queue is empty or the turn is over; returns the number of calls made. */
    int send() {
        long turnBytes = TURN_BYTES;
        int calls = 0;
        while (writable && !closed && turnBytes > 0 && (sending || begin())) {
            MessageHeader.vectors(header, run.vectors(), run.next(), run.count());
            long sent = libC.sendmsg(fd, header, SocketApi.MSG_NOSIGNAL);
            calls++;
            if (sent < 0) {
                writable = false;
                if (!IoResult.wouldBlock(sent)) {
                    broke();
                }
                return calls;
            }
            turnBytes -= sent;
            run.advance(sent);
            if (run.leftBytes() == 0) {
                finish();
            }
        }
        return calls;
    }

    private boolean begin() {
        if (!queue.cut(batch, TcpFrame.PAGES_MAX, TcpFrame.PAYLOAD_AIM_BYTES, Long.MAX_VALUE)) {
            return false;
        }
        int pageCount = batch.pageCount();
        long pageBytes = batch.pageBytes();
        TcpFrame.encode(frame, pageCount, batch.regionId(), batch.window(), batch.weight(), pageBytes);
        run.clear();
        run.add(frame.address(), TcpFrame.lengthBytes(pageCount));
        if (pageCount > 0) {
            long base = batch.source().address();
            long sourceBytes = batch.source().byteSize();
            for (int i = 0; i < pageCount; i++) {
                long offset = Objects.checkFromIndexSize(batch.sourceOffsetBytes(i), pageBytes, sourceBytes);
                TcpFrame.setTargetOffset(frame, i, batch.targetOffsetBytes(i));
                run.add(base + offset, pageBytes);
            }
        }
        sending = true;
        return true;
    }

    private void finish() {
        sending = false;
        figures.onSent(batch, batch.runCount());
        queue.batchDone(batch.position());
        batch.clear();
    }

    private void broke() {
        writable = false;
        if (!closed && !broken) {
            broken = true;
            events.onBreak();
        }
    }

    /** Starts to send: the socket is known to be connected. */
    void open() {
        writable = true;
    }

    void close() {
        if (!closed) {
            closed = true;
            loop.remove(key, fd);
            libC.close(fd);
            arena.close();
        }
    }
}
