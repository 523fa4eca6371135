package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.socket.Pollable;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Landing;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * One data socket of an admitted peer: checks each frame's header against the live window, lets the socket's bytes land
 * in the target pages, then counts the immediate. Bytes for device memory go through a {@link Landing}, which counts
 * them.
 *
 * <p>Worker only. Nothing is read into a page before every page of the frame has been checked.
 */
final class TcpReceivePath implements Pollable, Landing.Events {
    /** Bytes that one duty cycle may receive before other paths are served. */
    private static final long TURN_BYTES = 2 << 20;

    interface Events {
        void onRefused(String detail);

        void onGarbage(String detail);

        void onEnd(TcpReceivePath path, String detail);

        void onCopyFailed(String detail);

        /** Working on the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final int fd;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final Events events;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES, 8);
    /** Pages plus the next frame's header, which saves one call per frame in a stream of frames. */
    private final VectorRun run = new VectorRun(arena, TcpFrame.PAGES_MAX + 1);

    /** Receives the bytes of closed windows. Never read. */
    private final MemorySegment scrap;

    private long key;
    private int frameBytes;
    private long payloadLeftBytes;
    private long framesTaken;
    private long framesReported;
    private long bytesUnreported;
    /** Where the payload lands; null between payloads, or while one is discarded. */
    private OpenWindow target;
    /** The landing that the payload goes through; null for host memory. */
    private Landing through;
    /** Created for the first frame for a device. */
    private Landing landing;
    /** Created with it: the device memory still to be received of the frame. */
    private VectorRun deviceRun;

    private boolean watched = true;
    private boolean closed;

    private int pageCount;
    private long pageBytes;
    private int imm;
    private long weight;

    TcpReceivePath(
            EventLoop loop,
            int fd,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            MemorySegment scrap,
            Events events) {
        this.loop = loop;
        libC = loop.libC();
        this.fd = fd;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.scrap = scrap;
        this.events = events;
        try {
            key = loop.add(fd, Epoll.EPOLLIN, this);
        } catch (IllegalStateException e) {
            arena.close();
            throw e;
        }
    }

    @Override
    public void onReady(int mask, long nowNs) {
        receive();
        if (landing != null && !closed) {
            landing.copyLanded();
        }
    }

    private void receive() {
        long turnBytes = TURN_BYTES;
        while (!closed && (turnBytes > 0 || loop.seals().holdsBytes(fd))) {
            if (landing != null && !hasRoom()) {
                unwatch();
                return;
            }
            long count = read();
            if (IoResult.wouldBlock(count)) {
                return;
            }
            if (count <= 0) {
                // The end would be reported again and again.
                unwatch();
                events.onEnd(this, IoResult.endOf(count));
                return;
            }
            turnBytes -= count;
            boolean drained = target != null && count < run.leftBytes();
            if (payloadLeftBytes > 0) {
                onPayload(count);
            } else {
                frameBytes += (int) count;
            }
            if (payloadLeftBytes == 0 && !closed) {
                onFrameBytes();
            }
            if (drained
                    && payloadLeftBytes == 0
                    && frameBytes == 0
                    && !loop.seals().holdsBytes(fd)) {
                // Between two frames: later bytes are reported, and reading now would cost a system call.
                return;
            }
        }
    }

    @Override
    public void onError(Throwable error) {
        events.onError(error);
    }

    /** Whether the next bytes can be received; if not, {@link #onRoom} follows. */
    private boolean hasRoom() {
        return landing.takesFrames()
                && (through == null || payloadLeftBytes == 0 || through.roomBytes() > 0)
                && !closed;
    }

    @Override
    public void onRoom() {
        if (!closed && !watched) {
            key = loop.add(fd, Epoll.EPOLLIN, this);
            watched = true;
            onReady(Epoll.EPOLLIN, loop.nowNs());
        }
    }

    private long read() {
        if (payloadLeftBytes == 0) {
            run.clear();
            run.add(frame.address() + frameBytes, wantedBytes() - frameBytes);
        } else if (target == null) {
            return libC.read(fd, scrap, Math.min(payloadLeftBytes, scrap.byteSize()));
        }
        if (through != null) {
            aimAtLanding();
        }
        return libC.readv(fd, run.unfinished(), run.count());
    }

    /** Aims the next read at the landing: as much payload as there is room for, and after all of it the next header. */
    private void aimAtLanding() {
        long lengthBytes = Math.min(payloadLeftBytes, through.roomBytes());
        run.clear();
        run.add(through.address(), lengthBytes);
        if (lengthBytes == payloadLeftBytes) {
            run.add(frame.address(), TcpFrame.HEADER_BYTES);
        }
    }

    /** Length of the frame up to its payload, as far as known. */
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
        if (TcpFrame.isProbe(frame)) {
            frameBytes = 0;
            passOn(0);
            return;
        }
        OpenWindow window = port.windowOf(TcpFrame.window(frame));
        String refusal = window == null ? null : refusal(window);
        if (refusal != null) {
            events.onRefused(refusal);
            return;
        }
        beginPayload(window);
    }

    /** Why the frame may not be written to the window that it names, or null. */
    private String refusal(OpenWindow window) {
        if (!window.isOf(from)) {
            return describe() + " names a window of another peer";
        }
        int count = TcpFrame.pageCount(frame);
        if (count == 0) {
            return null;
        }
        int part = window.area().partIndexOf(TcpFrame.regionId(frame));
        if (part < 0) {
            return describe() + " names region " + TcpFrame.regionId(frame) + ", on which its window does not lie";
        }
        WindowRanges ranges = window.area().parts().get(part).ranges();
        long lengthBytes = TcpFrame.pageBytes(frame);
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

    /** @param window where the payload may land; null if the window does not exist any more */
    private void beginPayload(OpenWindow window) {
        pageCount = TcpFrame.pageCount(frame);
        pageBytes = TcpFrame.pageBytes(frame);
        imm = TcpFrame.window(frame);
        weight = TcpFrame.weight(frame);
        payloadLeftBytes = pageCount * pageBytes;
        frameBytes = 0;
        if (window == null || !window.beginLanding()) {
            // Writes may still be in flight when a window is closed: that is no fault of the peer.
            port.onStray();
        } else {
            target = window;
            run.clear();
            if (pageCount > 0) {
                aimAtPages(window);
            }
            run.add(frame.address(), TcpFrame.HEADER_BYTES);
        }
        if (payloadLeftBytes == 0) {
            payloadArrived();
        }
    }

    private void aimAtPages(OpenWindow window) {
        switch (window.memory(window.area().partIndexOf(TcpFrame.regionId(frame)))) {
            case Memory.Host host -> addPages(run, host.address());
            case Memory.Device device -> {
                if (landing == null) {
                    landing = port.landing(from, figures, this);
                    deviceRun = new VectorRun(arena, TcpFrame.PAGES_MAX);
                }
                through = landing;
                through.begin(device);
                deviceRun.clear();
                addPages(deviceRun, device.address());
            }
        }
    }

    private void addPages(VectorRun to, long baseAddress) {
        for (int i = 0; i < pageCount; i++) {
            to.add(baseAddress + TcpFrame.targetOffset(frame, i), pageBytes);
        }
    }

    private void onPayload(long count) {
        if (through != null) {
            copyOn(Math.min(count, payloadLeftBytes));
            if (closed) {
                return;
            }
        } else if (target != null) {
            run.advance(count);
        }
        if (count < payloadLeftBytes) {
            payloadLeftBytes -= count;
            return;
        }
        frameBytes = (int) (count - payloadLeftBytes);
        payloadLeftBytes = 0;
        payloadArrived();
    }

    private void copyOn(long landedBytes) {
        for (long left = landedBytes; left > 0 && !closed; ) {
            long lengthBytes = Math.min(left, deviceRun.firstBytes());
            long address = deviceRun.firstAddress();
            deviceRun.advance(lengthBytes);
            left -= lengthBytes;
            through.copyTo(address, lengthBytes);
        }
    }

    private void payloadArrived() {
        long payloadBytes = pageCount * pageBytes;
        if (through != null) {
            OpenWindow window = target;
            target = null;
            through = null;
            landing.finish(window, imm, weight, pageCount, payloadBytes);
            return;
        }
        if (target != null) {
            letGo();
            figures.add(TransferCounter.BYTES_RECEIVED, payloadBytes);
            figures.add(TransferCounter.PAGES_RECEIVED, pageCount);
            port.onArrived(from, imm, weight);
        }
        passOn(payloadBytes);
    }

    /** The frame is taken, behind those that are still being copied to a device. */
    private void passOn(long payloadBytes) {
        if (landing == null) {
            onTaken(payloadBytes);
        } else {
            landing.passBy(payloadBytes);
        }
    }

    @Override
    public void onTaken(long payloadBytes) {
        framesTaken++;
        bytesUnreported += payloadBytes;
    }

    @Override
    public void onCopyFailed(String detail) {
        events.onCopyFailed(detail);
    }

    /** Frames whose payload is in place and counted, or was discarded: none of them may be sent again. */
    long framesTaken() {
        return framesTaken;
    }

    /** Frames taken and not reported to the peer. */
    long framesUnreported() {
        return framesTaken - framesReported;
    }

    long bytesUnreported() {
        return bytesUnreported;
    }

    /** All frames taken have been reported to the peer. */
    void onReported() {
        framesReported = framesTaken;
        bytesUnreported = 0;
    }

    private void letGo() {
        OpenWindow window = target;
        target = null;
        if (through == null) {
            window.endLanding();
        } else {
            through = null;
            landing.abandon(window);
        }
    }

    /** Whether all complete frames are taken; always true with host memory. */
    boolean isSettled() {
        return landing == null || landing.isSettled();
    }

    /** Discards the rest of a frame for a window that was closed, so that nothing more lands in it. */
    void onWindowClosed(OpenWindow window) {
        if (target == window) {
            letGo();
            port.onStray();
        }
    }

    void close() {
        if (!closed) {
            closed = true;
            if (target != null) {
                letGo();
            }
            if (landing != null) {
                landing.close();
            }
            unwatch();
            libC.close(fd);
            arena.close();
        }
    }

    private void unwatch() {
        if (watched) {
            watched = false;
            loop.remove(key, fd);
        }
    }
}
