package io.kvmessenger.testkit.stream;

import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.WriterPaths;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.IoResult;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;

/**
 * One peer that this engine sends to by one stream: the frame of a write, then its pages.
 *
 * <p>Worker only. A write is reported as sent when the target has taken its frame. What was not, may have arrived: so
 * the loss of the stream loses the peer. It creates a slice for each page, which a transport of the product may not.
 */
final class StreamOutboundPaths extends WriterPaths implements Endpoint, Dialer.Events {
    /** Frames begun and not reported as taken. */
    private static final int FRAMES_MAX = 256;

    private static final long FRAME_BYTES = 1 << 20;
    private static final int LANE = 1;
    private static final int NONE = -1;

    private final EventLoop loop;
    private final String location;
    private final Arena arena = Arena.ofConfined();
    private final StreamFrame frame = new StreamFrame(arena.allocate(StreamFrame.LENGTH_BYTES, Long.BYTES));
    /** What is still to be sent of the frame in flight and its pages, in order. */
    private final ArrayDeque<MemorySegment> left = new ArrayDeque<>();

    private final long[] postIds = new long[FRAMES_MAX];
    private Dialer dialer;
    private int fd = NONE;
    private long begun;
    private long taken;

    StreamOutboundPaths(
            EventLoop loop,
            String location,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            long connectDeadlineNs) {
        super(channel, events, figures, connectDeadlineNs);
        this.loop = loop;
        this.location = location;
        request(MemorySegment.NULL);
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == StreamFrame.ACCEPTED && dialer == null) {
            dialer = new Dialer(loop, loop.sockets().connectAbstract(location), location, this::answer, this);
        } else if (kind == StreamFrame.READY && fd != NONE && !isOpen()) {
            open(this);
        } else if (kind == StreamFrame.TAKEN && payload.byteSize() == Long.BYTES) {
            onTaken(payload.get(JAVA_LONG_UNALIGNED, 0));
        } else {
            throw unexpected(kind);
        }
    }

    private Hello answer(Challenge asked) {
        int role = Hello.role(channel().number(), LANE);
        byte[] nonce = loop.seals().freshNonce();
        return Hello.answer(asked, location, role, 0, channel().admissionKey(), nonce);
    }

    @Override
    public void onConnected(int connectedFd) {
        fd = connectedFd;
    }

    @Override
    public void onFailed(String detail) {
        lose(TransferFault.UNREACHABLE, detail);
    }

    private void onTaken(long frames) {
        if (frames < taken || frames > begun) {
            throw new IllegalArgumentException("the peer claims " + frames + " frames of " + begun);
        }
        while (taken < frames && !isClosed()) {
            sent(postIds[(int) (taken++ % FRAMES_MAX)]);
        }
    }

    @Override
    protected int connect(long nowNs) {
        if (dialer != null) {
            dialer.doWork();
        }
        return 0;
    }

    @Override
    protected String overdue() {
        return "no stream to " + location + " in time";
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!isOpen() || !left.isEmpty() || begun - taken == FRAMES_MAX) {
            return 0;
        }
        int units = batch.limit(StreamFrame.PAGES_MAX, FRAME_BYTES, Imm.WEIGHT_MAX);
        frame.set(batch);
        left.add(frame.bytes());
        for (int i = 0; i < batch.pageCount(); i++) {
            left.add(batch.source().asSlice(batch.sourceOffsetBytes(i), batch.pageBytes()));
        }
        postIds[(int) (begun++ % FRAMES_MAX)] = postId;
        return units;
    }

    @Override
    protected int serve(long nowNs) {
        int work = 0;
        while (!left.isEmpty()) {
            MemorySegment next = left.getFirst();
            long count = loop.libC().write(fd, next, next.byteSize());
            if (IoResult.wouldBlock(count)) {
                return LOOK_SOON;
            }
            if (count < 0) {
                lose(TransferFault.PEER_CLOSED, IoResult.endOf(count));
                return work;
            }
            work++;
            left.removeFirst();
            if (count < next.byteSize()) {
                left.addFirst(next.asSlice(count));
            }
        }
        return work;
    }

    @Override
    protected void release() {
        if (dialer != null) {
            dialer.close();
        }
        if (fd != NONE) {
            loop.libC().close(fd);
        }
        arena.close();
    }
}
