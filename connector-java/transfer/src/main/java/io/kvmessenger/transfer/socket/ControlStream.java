package io.kvmessenger.transfer.socket;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.spi.MessageQueue;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;

/**
 * Small typed records in both directions over one socket; over a Unix socket they may carry descriptors.
 *
 * <p>Worker only. It does not interpret records.
 */
public final class ControlStream implements Pollable {
    /** No descriptor came with the record. */
    public static final int NO_DESCRIPTOR = -1;

    private static final int PREFIX_BYTES = 8;
    private static final int IN_BYTES = PREFIX_BYTES + TransferEngine.MESSAGE_MAX_BYTES;
    private static final int OUT_BYTES = 8 * IN_BYTES;
    private static final int FINISHED = 0;
    /** Longest last record, for which there is always room. */
    public static final int LAST_MAX_BYTES = 2048;
    /** Limit on the descriptors of one record. */
    private static final int DESCRIPTORS_MAX = 2;

    private static final int[] NONE = {};
    private static final String UNASKED = "the peer sent descriptors that were not asked for";
    /** Records whose descriptors are here, while no record is refused: the one whose rest has not come. */
    private static final int INCOMPLETE_MAX = 1;
    /** Full buffers that one duty cycle may receive before other peers are served. */
    private static final int TURN_READS = 16;
    /** A power of two. */
    private static final int PAYLOADS_KEPT = 256;

    /** Receives records and the end of the stream. */
    public interface Reader {
        /** Returns whether the record was accepted; if not, it is offered again by {@link ControlStream#resume}. */
        boolean onRecord(int type, MemorySegment payload, long nowNs);

        /** The stream has ended; its owner closes it. */
        void onEnd(String detail, boolean garbage);

        /** Working on the stream failed by an error of this engine; its owner closes it. */
        void onError(Throwable error);
    }

    private final EventLoop loop;
    private final LibC libC;
    private final int fd;
    private final Reader reader;
    private final int descriptorsMax;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment in = arena.allocate(IN_BYTES, 8);
    /** Parts of {@link #in} that were payloads before: records of one kind come in the same places again. */
    private final MemorySegment[] payloads = new MemorySegment[PAYLOADS_KEPT];

    private final MemorySegment out = arena.allocate(OUT_BYTES + PREFIX_BYTES + LAST_MAX_BYTES, 8);
    private final MemorySegment vector = arena.allocate(IoVector.SIZE_BYTES, 8);
    private final MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
    private final MemorySegment control = arena.allocate(MessageHeader.controlSpaceBytes(DESCRIPTORS_MAX), 8);
    /**
     * Descriptors of records that have not been passed on yet, record by record; fewer than were sent where this process
     * had no room for them. They come with their record's first byte, and never those of two records together.
     */
    private final ArrayDeque<int[]> descriptors = new ArrayDeque<>();

    /** Descriptors of the record that is being passed on. */
    private final ArrayDeque<Integer> offered = new ArrayDeque<>();

    private final long key;
    private int mask = Epoll.EPOLLIN;
    private int inBytes;
    private int outFrom;
    private int outTo;
    /** How much may be queued; {@link #FINISHED} once the last record is. */
    private int outMaxBytes = OUT_BYTES;

    private boolean watched = true;
    private boolean refusing;
    private boolean ended;
    private boolean discarding;
    private boolean closed;

    /**
     * Takes over the descriptor.
     *
     * @param descriptorsMax how many descriptors a record may come with. With zero, none can be received, and one ends
     *     the stream; so do those of a second record before the first is complete
     * @throws IllegalStateException when the operating system refuses; the descriptor stays the caller's
     */
    public ControlStream(EventLoop loop, int fd, Reader reader, int descriptorsMax) {
        this.descriptorsMax = Math.min(descriptorsMax, DESCRIPTORS_MAX);
        this.loop = loop;
        libC = loop.libC();
        this.fd = fd;
        this.reader = reader;
        try {
            key = loop.add(fd, mask, this);
        } catch (RuntimeException e) {
            arena.close();
            throw e;
        }
    }

    /** Whether a record of this length can be queued now. */
    public boolean hasRoom(long payloadBytes) {
        return outMaxBytes - outTo + outFrom >= PREFIX_BYTES + payloadBytes;
    }

    /** Bytes that the peer's machine has not acknowledged; 0 if that is unknown. */
    public long unacknowledgedBytes() {
        if (closed || libC.ioctl(fd, SocketApi.SIOCOUTQ, control) < 0) {
            return 0;
        }
        return (long) control.get(ValueLayout.JAVA_INT, 0) + outTo - outFrom;
    }

    /** Queues a record and sends what can be sent; false when there is no room. */
    public boolean offer(int type, MemorySegment payload) {
        if (!hasRoom(payload.byteSize())) {
            return false;
        }
        if (outTo + PREFIX_BYTES + payload.byteSize() > OUT_BYTES) {
            compact();
        }
        append(type, payload);
        flush();
        return true;
    }

    private void compact() {
        MemorySegment.copy(out, outFrom, out, 0, outTo - outFrom);
        outTo -= outFrom;
        outFrom = 0;
    }

    /**
     * Sends a record with descriptors; only while nothing is queued, so that they stay with their record.
     *
     * @return false when something is queued, the operating system lacks room, or the peer has gone, which the reader
     *     is informed of; try again later
     * @throws IllegalStateException when the operating system refuses for good
     */
    public boolean offerDescriptors(int type, MemorySegment payload, int... fds) {
        if (outTo != outFrom || ended || outMaxBytes == FINISHED) {
            return false;
        }
        outFrom = 0;
        outTo = 0;
        append(ControlRecord.withDescriptors(type, fds.length), payload);
        MessageHeader.setDescriptors(control, fds);
        MessageHeader.control(header, control, MessageHeader.controlSpaceBytes(fds.length));
        long sent = send();
        if (sent <= 0) {
            outTo = 0;
            if (!IoResult.mayPass(sent)) {
                throw new IllegalStateException("the control socket takes no descriptors: " + Errno.name((int) -sent));
            }
        } else {
            outFrom += (int) sent;
            flush();
        }
        return sent > 0;
    }

    /** Sends messages while there is room for them; returns how many. */
    public int sendAll(int type, MessageQueue messages) {
        int count = 0;
        for (MemorySegment message = messages.peek();
                message != null && offer(type, message);
                message = messages.peek()) {
            messages.release();
            count++;
        }
        return count;
    }

    private void append(int type, MemorySegment payload) {
        out.set(INT, outTo, type);
        out.set(INT, outTo + 4, (int) payload.byteSize());
        MemorySegment.copy(payload, 0, out, outTo + PREFIX_BYTES, payload.byteSize());
        outTo += PREFIX_BYTES + (int) payload.byteSize();
    }

    private void flush() {
        while (outFrom < outTo) {
            MessageHeader.control(header, control, 0);
            long sent = send();
            if (sent <= 0) {
                watch(IoResult.wouldBlock(sent) ? mask | Epoll.EPOLLOUT : mask);
                return;
            }
            outFrom += (int) sent;
        }
        outFrom = 0;
        outTo = 0;
        watch(mask & ~Epoll.EPOLLOUT);
        if (outMaxBytes == FINISHED) {
            libC.shutdown(fd, SocketApi.SHUT_WR);
        }
    }

    private long send() {
        IoVector.set(vector, 0, out.address() + outFrom, outTo - outFrom);
        MessageHeader.vectors(header, vector, 1);
        return libC.sendmsg(fd, header, SocketApi.MSG_NOSIGNAL);
    }

    @Override
    public void onReady(int ready, long nowNs) {
        if ((ready & Epoll.EPOLLOUT) != 0) {
            flush();
        }
        boolean broken = (ready & (Epoll.EPOLLHUP | Epoll.EPOLLERR)) != 0;
        if (refusing && broken && !closed) {
            // The receiver is back-pressured, and level-triggered epoll would report EPOLLHUP forever.
            end("the peer closed the path", false);
        } else if (broken) {
            drain(nowNs);
        } else if ((ready & Epoll.EPOLLIN) != 0) {
            readReady(nowNs);
        }
    }

    @Override
    public void onError(Throwable error) {
        reader.onError(error);
    }

    /**
     * Reads once, or some times if the buffer was filled: epoll reports remaining bytes again, and checking for them now
     * would cost a system call.
     */
    private void readReady(long nowNs) {
        boolean more = true;
        for (int left = TURN_READS - 1; more; left--) {
            int roomBytes = IN_BYTES - inBytes;
            long count = read(nowNs);
            more = count > 0
                    && ((count == roomBytes && left > 0) || loop.seals().holdsBytes(fd));
        }
    }

    /** Reads everything that has arrived, but not all that a peer sends meanwhile: others wait. */
    public void drain(long nowNs) {
        long left = closed || libC.ioctl(fd, SocketApi.SIOCINQ, control) < 0 ? 0 : control.get(ValueLayout.JAVA_INT, 0);
        long count = 1;
        // Once more where nothing is left, since the end of the stream is no byte.
        while (count > 0 && (left >= 0 || loop.seals().holdsBytes(fd))) {
            count = read(nowNs);
            left -= count;
        }
    }

    /** Reads once and passes on complete records; returns the bytes read, not positive when none can be taken. */
    private long read(long nowNs) {
        if (closed || ended || refusing) {
            return 0;
        }
        IoVector.set(vector, 0, in.address() + inBytes, IN_BYTES - inBytes);
        MessageHeader.vectors(header, vector, 1);
        MessageHeader.control(header, control, descriptorsMax == 0 || discarding ? 0 : control.byteSize());
        long count = libC.recvmsg(fd, header, SocketApi.MSG_CMSG_CLOEXEC);
        if (IoResult.wouldBlock(count)) {
            return 0;
        }
        if (count <= 0) {
            end(IoResult.endOf(count), false);
        } else if (discarding) {
            inBytes = 0;
        } else if (!keepDescriptors()) {
            end(UNASKED, true);
        } else {
            inBytes += (int) count;
            dispatch(nowNs);
            if (!closed && !ended && !refusing && descriptors.size() > INCOMPLETE_MAX) {
                end(UNASKED, true);
            }
        }
        return count;
    }

    /** Whether the peer may send descriptors, if it did. */
    private boolean keepDescriptors() {
        int count = descriptorsMax == 0 ? 0 : MessageHeader.descriptorCount(header, control);
        boolean lost = MessageHeader.isControlTruncated(header);
        if (descriptorsMax > 0 && (count > 0 || lost)) {
            int[] ofOneRecord = new int[count];
            for (int i = 0; i < count; i++) {
                ofOneRecord[i] = MessageHeader.descriptor(control, i);
            }
            descriptors.add(ofOneRecord);
        }
        return descriptorsMax > 0 ? count <= descriptorsMax : !lost;
    }

    private void dispatch(long nowNs) {
        int from = 0;
        while (!closed && !ended && inBytes - from >= PREFIX_BYTES) {
            int lengthBytes = in.get(INT, from + 4);
            if (lengthBytes < 0 || lengthBytes > TransferEngine.MESSAGE_MAX_BYTES) {
                end("a control record claims " + lengthBytes + " bytes", true);
                return;
            }
            if (inBytes - from < PREFIX_BYTES + lengthBytes) {
                break;
            }
            if (!handOver(in.get(INT, from), payload(from + PREFIX_BYTES, lengthBytes), nowNs)) {
                refusing = true;
                watch(mask & ~Epoll.EPOLLIN);
                break;
            }
            from += PREFIX_BYTES + lengthBytes;
        }
        if (!closed) {
            MemorySegment.copy(in, from, in, 0, inBytes - from);
            inBytes -= from;
        }
    }

    /** This part of {@link #in}; allocates nothing where a payload was before. */
    private MemorySegment payload(int from, int lengthBytes) {
        int place = (from / Integer.BYTES + 37 * lengthBytes) & (PAYLOADS_KEPT - 1);
        MemorySegment kept = payloads[place];
        if (kept == null || kept.address() != in.address() + from || kept.byteSize() != lengthBytes) {
            kept = in.asSlice(from, lengthBytes);
            payloads[place] = kept;
        }
        return kept;
    }

    /** Passes on a record with its descriptors, of which the reader takes those it needs. */
    private boolean handOver(int type, MemorySegment payload, long nowNs) {
        boolean withDescriptors = ControlRecord.descriptorCount(type) > 0 && !descriptors.isEmpty();
        int[] own = withDescriptors ? descriptors.remove() : NONE;
        for (int descriptor : own) {
            offered.add(descriptor);
        }
        boolean taken = reader.onRecord(type, payload, nowNs);
        if (taken || closed) {
            closeOffered();
        } else if (withDescriptors) {
            descriptors.addFirst(offered.stream().mapToInt(Integer::intValue).toArray());
            offered.clear();
        }
        return taken;
    }

    /** After malformed input: keeps reading only to detect the peer's hang-up, which is then the end. */
    public void discard() {
        closeDescriptors();
        ended = false;
        refusing = false;
        discarding = true;
        watch(mask | Epoll.EPOLLIN);
    }

    /** Offers a refused record again; returns whether it was accepted. */
    public boolean resume(long nowNs) {
        if (!refusing || closed) {
            return false;
        }
        refusing = false;
        dispatch(nowNs);
        if (refusing || closed) {
            return false;
        }
        watch(mask | Epoll.EPOLLIN);
        if (loop.seals().holdsBytes(fd)) {
            drain(nowNs);
        }
        return true;
    }

    private void end(String detail, boolean garbage) {
        ended = true;
        if (garbage) {
            // The hang-up still counts for an owner that goes on to discard.
            watch(0);
        } else {
            unwatch();
        }
        reader.onEnd(detail, garbage);
    }

    /** Unregisters, since a hang-up would be reported repeatedly, whatever the mask. */
    private void unwatch() {
        if (watched) {
            watched = false;
            loop.remove(key, fd);
        }
    }

    private void watch(int wanted) {
        if (wanted != mask && watched) {
            mask = wanted;
            loop.change(key, fd, mask);
        }
    }

    /** The next descriptor of the record being passed on, now the caller's; or {@link #NO_DESCRIPTOR}. */
    public int takeDescriptor() {
        return offered.isEmpty() ? NO_DESCRIPTOR : offered.remove();
    }

    /**
     * Queues the last record, however much is queued, and shuts down the sending direction once all is sent; reading
     * goes on.
     *
     * @param payload at most {@link #LAST_MAX_BYTES}
     */
    public void finish(int type, MemorySegment payload) {
        compact();
        append(type, payload);
        outMaxBytes = FINISHED;
        flush();
    }

    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        unwatch();
        libC.close(fd);
        closeDescriptors();
        arena.close();
    }

    private void closeDescriptors() {
        for (int[] ofOneRecord = descriptors.poll(); ofOneRecord != null; ofOneRecord = descriptors.poll()) {
            for (int descriptor : ofOneRecord) {
                libC.close(descriptor);
            }
        }
        closeOffered();
    }

    private void closeOffered() {
        while (!offered.isEmpty()) {
            libC.close(offered.remove());
        }
    }
}
