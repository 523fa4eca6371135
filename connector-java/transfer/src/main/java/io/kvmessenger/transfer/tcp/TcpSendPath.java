package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.socket.Pollable;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Objects;

/**
 * One data socket to a peer: sends header and pages of a batch with one gathering call, one batch after the other.
 *
 * <p>Worker only. It does not decide what a broken socket means for the link.
 */
final class TcpSendPath implements Pollable, Endpoint {
    /** Frames begun and not yet reported as sent. A power of two. */
    private static final int FRAMES_MAX = 1 << 10;

    /** In place of a post: the frame is a probe. */
    private static final long PROBE = -1;

    interface Events {
        void onSent(long postId);

        void onBreak();

        /** Working on the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final int fd;
    private final int network;
    private final Events events;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES, 8);
    private final MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
    /** Also the argument of calls that need a value in memory. */
    private final MemorySegment scrap = arena.allocate(64, 8);

    private final VectorRun run = new VectorRun(arena, TcpFrame.PAGES_MAX + 1);
    /** By the frame's serial number on this path. */
    private final long[] postIds = new long[FRAMES_MAX];

    private final long key;
    private long framesBegun;
    private long framesWritten;
    /** Of these, the frames that the target has confirmed as taken. */
    private long framesReported;

    private long bytesWritten;
    /** Of these, the bytes that {@link #pace} has returned. */
    private long bytesPaced;
    /** The socket is written to until as many are written. */
    private long bytesAllowed = Long.MAX_VALUE;

    private final String link;
    private final SendBuffer buffer;
    private boolean writable;
    private boolean closed;
    private boolean failed;
    private boolean broken;
    private boolean givenUp;

    /**
     * Takes over the socket.
     *
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    TcpSendPath(EventLoop loop, int fd, int network, Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.fd = fd;
        this.network = network;
        this.events = events;
        link = loop.sockets().linkOf(fd);
        buffer = new SendBuffer(loop.sockets(), fd);
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
        // The peer sends nothing on a data path: all that can be read is its end.
        if ((mask & (Epoll.EPOLLIN | Epoll.EPOLLHUP | Epoll.EPOLLERR)) != 0) {
            long count;
            do {
                count = libC.read(fd, scrap, scrap.byteSize());
            } while (count == -Errno.EINTR);
            if (!IoResult.wouldBlock(count)) {
                broke();
            }
        }
    }

    @Override
    public void onError(Throwable error) {
        events.onError(error);
    }

    @Override
    public int network() {
        return network;
    }

    @Override
    public long heldBytes() {
        return closed || holdsOnlyProbe() ? 0 : unacknowledgedBytes() + run.leftBytes();
    }

    /** Bytes that the peer's kernel has acknowledged; they show whether a long page moves before it is complete. */
    @Override
    public long acknowledgedBytes() {
        return closed ? 0 : bytesWritten - unacknowledgedBytes();
    }

    private long unacknowledgedBytes() {
        return libC.ioctl(fd, SocketApi.SIOCOUTQ, scrap) < 0 ? 0 : scrap.get(ValueLayout.JAVA_INT, 0);
    }

    @Override
    public void limitUnsent(long lengthBytes) {
        if (!closed) {
            scrap.set(ValueLayout.JAVA_INT, 0, (int) Math.min(lengthBytes, Integer.MAX_VALUE));
            libC.setsockopt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_NOTSENT_LOWAT, scrap, Integer.BYTES);
        }
    }

    @Override
    public void limitHeld(long lengthBytes) {
        if (closed) {
            return;
        }
        if (lengthBytes == Long.MAX_VALUE) {
            buffer.free();
        } else {
            buffer.bound(lengthBytes);
        }
    }

    @Override
    public long leastRoundTripNs() {
        return closed ? 0 : loop.sockets().leastRoundTripNs(fd);
    }

    @Override
    public String link() {
        return link;
    }

    @Override
    public long pace(long lengthBytes) {
        long given = bytesWritten - bytesPaced;
        bytesPaced = bytesWritten;
        bytesAllowed = lengthBytes == Long.MAX_VALUE ? Long.MAX_VALUE : bytesWritten + lengthBytes;
        return given;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!writable || closed || framesBegun != framesWritten || framesBegun - framesReported == FRAMES_MAX) {
            return 0;
        }
        int taken = batch.limit(TcpFrame.PAGES_MAX, TcpFrame.PAYLOAD_AIM_BYTES, Long.MAX_VALUE);
        begin(batch);
        postIds[(int) framesBegun++ & (FRAMES_MAX - 1)] = postId;
        write();
        return taken;
    }

    /** Whether nothing is under way. */
    boolean isIdle() {
        return framesBegun == framesReported;
    }

    /** Whether nothing but a probe is under way. */
    boolean holdsOnlyProbe() {
        return framesBegun - framesReported == 1 && postIds[(int) framesReported & (FRAMES_MAX - 1)] == PROBE;
    }

    /** Sends a frame that only shows whether the socket still leads to the peer; false if there is no room for it. */
    boolean probe() {
        if (!writable || closed || !isIdle()) {
            return false;
        }
        TcpFrame.encodeProbe(frame);
        run.clear();
        run.add(frame.address(), TcpFrame.HEADER_BYTES);
        postIds[(int) framesBegun++ & (FRAMES_MAX - 1)] = PROBE;
        write();
        return true;
    }

    private void begin(WriteBatch batch) {
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
    }

    /** Writes until the frame is complete or the socket is full. */
    private void write() {
        while (writable && run.leftBytes() > 0 && bytesWritten < bytesAllowed) {
            MessageHeader.vectors(header, run.unfinished(), run.count());
            long sent = libC.sendmsg(fd, header, SocketApi.MSG_NOSIGNAL);
            if (sent == -Errno.EINTR) {
                // The socket may have room: nothing would report it once more.
                continue;
            }
            if (sent < 0) {
                writable = false;
                failed |= !IoResult.wouldBlock(sent);
                return;
            }
            bytesWritten += sent;
            run.advance(sent);
        }
        if (run.leftBytes() == 0) {
            framesWritten = framesBegun;
        }
    }

    /** Continues a frame that the socket had no room for; returns how many were finished. */
    int doWork() {
        long before = framesWritten;
        if (framesBegun != framesWritten && !closed) {
            write();
        }
        if (failed) {
            broke();
        }
        return (int) (framesWritten - before);
    }

    long framesReported() {
        return framesReported;
    }

    /** The target has taken the first {@code frames} frames: reports them; false if impossible. Also once closed. */
    boolean onTaken(long frames) {
        if (frames < framesReported || frames > framesWritten) {
            return false;
        }
        while (framesReported < frames) {
            long postId = postIds[(int) framesReported++ & (FRAMES_MAX - 1)];
            if (postId != PROBE) {
                events.onSent(postId);
            }
        }
        return true;
    }

    /** Gives the path up: the target does not confirm what was sent. */
    @Override
    public void giveUp() {
        givenUp = true;
        broke();
    }

    boolean wasGivenUp() {
        return givenUp;
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
