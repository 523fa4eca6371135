package io.kvmessenger.testkit.stream;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.path.ReaderPaths;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.socket.Pollable;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * One admitted peer's stream: checks each frame, receives its pages where they belong, and counts it.
 *
 * <p>Worker only. Nothing lands once the stream is closed. When the peer has gone, what it sent before may be in the
 * stream: it is over at the stream's end.
 */
final class StreamInboundPaths extends ReaderPaths implements Pollable {
    private static final int NONE = -1;
    /** Reads of one call, before other peers are served. */
    private static final int TURN_READS = 256;

    /** Where the pages of one frame land; the memory is null if it has none. */
    private record Place(OpenWindow window, MemorySegment memory) {}

    private final EventLoop loop;
    private final Arena arena = Arena.ofConfined();
    private final StreamFrame frame = new StreamFrame(arena.allocate(StreamFrame.LENGTH_BYTES, Long.BYTES));
    private final MemorySegment discarded = arena.allocate(1 << 16);
    private final MemorySegment takenCount = arena.allocate(JAVA_LONG);
    private final OwedRecord accepted;
    private final OwedRecord readiness;
    private int fd = NONE;
    private long key;
    /** Of the frame being received and its pages. */
    private long receivedBytes;

    /** Null if the pages are discarded. */
    private Place place;

    private long taken;
    private long reported;

    StreamInboundPaths(
            EventLoop loop,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            long readyDeadlineNs) {
        super(port, from, figures, channel, readyDeadlineNs);
        this.loop = loop;
        accepted = new OwedRecord(() -> channel.report(StreamFrame.ACCEPTED, MemorySegment.NULL));
        readiness = new OwedRecord(() -> channel.report(StreamFrame.READY, MemorySegment.NULL));
        accepted.send();
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
        return true;
    }

    @Override
    public boolean take(int socket, int lane, int serial) {
        if (isClosed() || fd != NONE) {
            return false;
        }
        key = loop.add(socket, Epoll.EPOLLIN, this);
        fd = socket;
        countOpened();
        return true;
    }

    @Override
    protected int advance(long nowNs) {
        accepted.send();
        if (fd != NONE && readiness.send()) {
            becomeReady();
        }
        if (reported < taken && !isPeerGone()) {
            takenCount.set(JAVA_LONG, 0, taken);
            reported = channel().report(StreamFrame.TAKEN, takenCount) ? taken : reported;
        }
        return 0;
    }

    @Override
    protected String overdue() {
        return "the peer opened no stream in time";
    }

    @Override
    protected boolean waits() {
        return reported < taken || (fd != NONE && !isReady());
    }

    @Override
    public void onReady(int mask, long nowNs) {
        for (int i = 0; i < TURN_READS && !isClosed(); i++) {
            MemorySegment to = target();
            long lengthBytes = loop.libC().read(fd, to, to.byteSize());
            if (IoResult.wouldBlock(lengthBytes)) {
                return;
            }
            if (lengthBytes <= 0) {
                end(IoResult.endOf(lengthBytes));
                return;
            }
            receivedBytes += lengthBytes;
            if (receivedBytes == StreamFrame.LENGTH_BYTES && !begin()) {
                return;
            }
            if (isFrameThere() && receivedBytes == StreamFrame.LENGTH_BYTES + frame.pagesBytes()) {
                count();
            }
        }
    }

    private boolean isFrameThere() {
        return receivedBytes >= StreamFrame.LENGTH_BYTES;
    }

    /** Where the next bytes go. */
    private MemorySegment target() {
        if (!isFrameThere()) {
            return frame.bytes().asSlice(receivedBytes);
        }
        long ofPagesBytes = receivedBytes - StreamFrame.LENGTH_BYTES;
        long ofPageBytes = ofPagesBytes % frame.pageBytes();
        long leftBytes = frame.pageBytes() - ofPageBytes;
        int page = (int) (ofPagesBytes / frame.pageBytes());
        return place == null
                ? discarded.asSlice(0, Math.min(leftBytes, discarded.byteSize()))
                : place.memory.asSlice(frame.targetOffset(page) + ofPageBytes, leftBytes);
    }

    /** The frame is there: returns whether its pages may be received. */
    private boolean begin() {
        if (!frame.isSound()) {
            reject(TransferFault.PROTOCOL, "the peer sent a frame that cannot be");
            return false;
        }
        OpenWindow named = port().windowOf(frame.imm() & ~Imm.WEIGHT_MAX);
        if (named != null && !mayWrite(named)) {
            String detail = "a write of " + from().admission().peerName() + " leaves its window, or names another's";
            port().onRefused(from(), detail);
            channel().dismiss(TransferFault.WRITE_REFUSED, detail);
            return false;
        }
        if (named != null && named.beginLanding()) {
            place = new Place(named, memory(named));
        } else {
            port().onStray();
        }
        return true;
    }

    private MemorySegment memory(OpenWindow named) {
        return frame.pageCount() > 0
                        && named.memory(named.area().partIndexOf(frame.regionId())) instanceof Memory.Host host
                ? host.bytes()
                : null;
    }

    private boolean mayWrite(OpenWindow named) {
        WindowArea area = named.area();
        int part = frame.pageCount() == 0 ? NONE : area.partIndexOf(frame.regionId());
        if (!named.isOf(from()) || (frame.pageCount() > 0 && part < 0)) {
            return false;
        }
        for (int i = 0; i < frame.pageCount(); i++) {
            if (!area.parts().get(part).ranges().contains(frame.targetOffset(i), frame.pageBytes())) {
                return false;
            }
        }
        return true;
    }

    private void count() {
        Place filled = place;
        place = null;
        receivedBytes = 0;
        taken++;
        if (filled != null) {
            filled.window.endLanding();
            figures().add(TransferCounter.BYTES_RECEIVED, frame.pagesBytes());
            figures().add(TransferCounter.PAGES_RECEIVED, frame.pageCount());
            port().onArrived(from(), frame.imm() & ~Imm.WEIGHT_MAX, Imm.weight(frame.imm()));
        }
    }

    /** Nothing more lands there. */
    void onWindowClosed(OpenWindow closed) {
        if (place != null && place.window == closed) {
            place = null;
            closed.endLanding();
            port().onStray();
        }
    }

    @Override
    protected void release() {
        if (place != null) {
            place.window.endLanding();
        }
        if (fd != NONE) {
            loop.remove(key, fd);
            loop.libC().close(fd);
        }
        arena.close();
    }

    @Override
    public void onError(Throwable error) {
        channel().onError(error);
    }
}
