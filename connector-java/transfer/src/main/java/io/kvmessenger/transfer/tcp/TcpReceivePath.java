package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.socket.Pollable;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * One data socket of an admitted peer: checks each frame's header against the live window, then lets the socket's bytes
 * land in the target pages, then counts the immediate.
 *
 * <p>Worker only. Nothing is read into a page before every page of the frame has been checked.
 */
final class TcpReceivePath implements Pollable {
    /** What one turn may receive before other paths get theirs. */
    private static final long TURN_BYTES = 2 << 20;

    /** What the link is told. */
    interface Events {
        void onRefused(String detail);

        void onGarbage(String detail);

        /** @param clean whether the stream ended between two frames */
        void onEnd(String detail, boolean clean, long nowNs);
    }

    private final EventLoop loop;
    private final int fd;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final Events events;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES, 8);
    /** Pages, and the next frame's header, so that a stream of frames costs one call less for each. */
    private final VectorRun run = new VectorRun(arena, TcpFrame.PAGES_MAX + 1);

    private final long key;
    private int frameBytes;
    private long payloadLeftBytes;
    private boolean receiving;
    private boolean closed;

    private OpenWindow target;
    private int pageCount;
    private long pageBytes;
    private int window;
    private long weight;

    TcpReceivePath(EventLoop loop, int fd, InboundPort port, InboundAdmission from, Figures figures, Events events) {
        this.loop = loop;
        this.fd = fd;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.events = events;
        key = loop.add(fd, Epoll.EPOLLIN, this);
    }

    @Override
    public void onReady(int mask, long nowNs) {
        long turnBytes = TURN_BYTES;
        while (!closed && turnBytes > 0) {
            long count = receiving
                    ? LibC.readv(fd, run.vectors().asSlice(run.next() * IoVector.SIZE_BYTES), run.count())
                    : LibC.read(fd, frame.asSlice(frameBytes), wantedBytes() - frameBytes);
            if (IoResult.wouldBlock(count)) {
                return;
            }
            if (count <= 0) {
                events.onEnd(IoResult.endOf(count), count == 0 && !receiving && frameBytes == 0, nowNs);
                return;
            }
            turnBytes -= count;
            if (receiving) {
                onPayload(count);
            } else {
                frameBytes += (int) count;
            }
            if (!receiving && !closed) {
                onFrameBytes();
            }
        }
    }

    /** How long the part of the frame before the payload is, as far as is known. */
    private int wantedBytes() {
        return frameBytes < TcpFrame.HEADER_BYTES
                ? TcpFrame.HEADER_BYTES
                : TcpFrame.lengthBytes(TcpFrame.pageCount(frame));
    }

    private void onFrameBytes() {
        if (frameBytes < TcpFrame.HEADER_BYTES) {
            return;
        }
        String fault = TcpFrame.fault(frame);
        if (fault != null) {
            events.onGarbage(fault);
            return;
        }
        if (frameBytes < wantedBytes()) {
            return;
        }
        String refusal = refusal();
        if (refusal != null) {
            events.onRefused(refusal);
            return;
        }
        beginPayload();
    }

    /** Why the frame may not be written, or null. */
    private String refusal() {
        target = port.windowOf(from, TcpFrame.window(frame));
        if (target == null) {
            return describe() + " names no open window of this peer";
        }
        if (TcpFrame.pageCount(frame) > 0 && target.regionId() != TcpFrame.regionId(frame)) {
            return describe() + " names region " + TcpFrame.regionId(frame) + ", its window lies on region "
                    + target.regionId();
        }
        WindowRanges ranges = target.ranges();
        long lengthBytes = TcpFrame.pageBytes(frame);
        int count = TcpFrame.pageCount(frame);
        for (int i = 0; i < count; i++) {
            if (!ranges.contains(TcpFrame.targetOffset(frame, i), lengthBytes)) {
                return describe() + " at offset " + TcpFrame.targetOffset(frame, i) + " of " + lengthBytes
                        + " bytes leaves its window on region " + TcpFrame.regionId(frame);
            }
        }
        return null;
    }

    private String describe() {
        int imm = TcpFrame.window(frame);
        return "a write of " + from.admission().peerName() + " with slot " + Imm.slot(imm) + " generation "
                + Imm.generation(imm);
    }

    private void beginPayload() {
        pageCount = TcpFrame.pageCount(frame);
        pageBytes = TcpFrame.pageBytes(frame);
        window = TcpFrame.window(frame);
        weight = TcpFrame.weight(frame);
        payloadLeftBytes = pageCount * pageBytes;
        run.clear();
        if (payloadLeftBytes > 0) {
            long base = target.memory().address();
            for (int i = 0; i < pageCount; i++) {
                run.add(base + TcpFrame.targetOffset(frame, i), pageBytes);
            }
        }
        frameBytes = 0;
        run.add(frame.address(), TcpFrame.HEADER_BYTES);
        receiving = true;
        if (payloadLeftBytes == 0) {
            payloadArrived();
        }
    }

    private void onPayload(long count) {
        run.advance(count);
        if (count < payloadLeftBytes) {
            payloadLeftBytes -= count;
            return;
        }
        frameBytes = (int) (count - payloadLeftBytes);
        payloadArrived();
    }

    private void payloadArrived() {
        payloadLeftBytes = 0;
        receiving = false;
        target = null;
        figures.bytesReceived.addAndGet(pageCount * pageBytes);
        figures.pagesReceived.addAndGet(pageCount);
        if (weight > 0) {
            port.onArrived(from, window, weight);
        }
    }

    void close() {
        if (!closed) {
            closed = true;
            loop.remove(key, fd);
            LibC.close(fd);
            arena.close();
        }
    }
}
