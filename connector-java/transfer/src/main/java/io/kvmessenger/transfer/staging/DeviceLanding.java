package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Landing;
import io.kvmessenger.transfer.spi.OpenWindow;

/**
 * The landing of one path: receives into slabs, queues copies at the end of each duty cycle, and counts frames in order
 * once their copies are done.
 *
 * <p>Worker only.
 */
final class DeviceLanding implements Landing, CopyLane.User {
    /** Frames not reported as taken; a power of two. */
    private static final int FRAMES_MAX = 1 << 8;
    /** Entries reserved for frames that end with their path. */
    private static final int FRAMES_SPARE = 4;

    private final Staging staging;
    private final SlabPool pool;
    private final SlabPool.Holder holder;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final Events events;

    // Frames, by their order: those from framesSettled to framesEnded.
    /** Null for a frame that holds no window. */
    private final OpenWindow[] windows = new OpenWindow[FRAMES_MAX];

    private final int[] imms = new int[FRAMES_MAX];
    /** 0 for a frame that is not counted. */
    private final long[] weights = new long[FRAMES_MAX];

    private final int[] pageCounts = new int[FRAMES_MAX];
    private final long[] payloadBytes = new long[FRAMES_MAX];
    private final boolean[] isFrame = new boolean[FRAMES_MAX];
    /** Null for a frame without a pending copy. */
    private final CopyLane[] lanes = new CopyLane[FRAMES_MAX];

    private final long[] marks = new long[FRAMES_MAX];
    private long framesEnded;
    private long framesSettled;

    // The slab that is being filled, and those that are being copied.
    private CopyLane lane;
    private int slab = SlabPool.NONE;
    private long landedBytes;
    private boolean unmarked;
    /** The last copy, not queued yet, since the next bytes may extend it. */
    private long copyTarget;

    private long copySource;
    private long copyBytes;
    private final int[] copiedSlabs;
    private final CopyLane[] copiedBy;
    private final long[] copiedMarks;
    private int copiedCount;

    private boolean waits;
    private boolean closed;

    DeviceLanding(
            Staging staging,
            SlabPool pool,
            SlabPool.Holder holder,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            Events events) {
        this.staging = staging;
        this.pool = pool;
        this.holder = holder;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.events = events;
        int slabs = staging.limits().allSlabs();
        copiedSlabs = new int[slabs];
        copiedBy = new CopyLane[slabs];
        copiedMarks = new long[slabs];
    }

    @Override
    public void begin(Memory.Device target) {
        CopyLane next = staging.laneFromHost(target.ordinal());
        if (next != lane) {
            copyLanded();
            lane = next;
        }
    }

    @Override
    public long roomBytes() {
        if (slab != SlabPool.NONE && landedBytes == staging.limits().slabBytes()) {
            copyLanded();
        }
        if (slab == SlabPool.NONE && !closed) {
            takeSlab();
        }
        waits = slab == SlabPool.NONE && !closed;
        return slab == SlabPool.NONE ? 0 : staging.limits().slabBytes() - landedBytes;
    }

    private void takeSlab() {
        try {
            slab = pool.take(holder, 1);
            landedBytes = 0;
        } catch (DeviceFault e) {
            events.onCopyFailed(e.getMessage());
        }
    }

    @Override
    public long address() {
        return pool.address(slab) + landedBytes;
    }

    @Override
    public void copyTo(long deviceAddress, long lengthBytes) {
        long hostAddress = address();
        landedBytes += lengthBytes;
        unmarked = true;
        if (copyBytes > 0 && deviceAddress == copyTarget + copyBytes) {
            copyBytes += lengthBytes;
            return;
        }
        if (queueCopy()) {
            copyTarget = deviceAddress;
            copySource = hostAddress;
            copyBytes = lengthBytes;
        }
    }

    /** Returns false after a fault, of which the path has been notified. */
    private boolean queueCopy() {
        long lengthBytes = copyBytes;
        copyBytes = 0;
        return lengthBytes == 0 || lane.fromHost(copyTarget, copySource, lengthBytes);
    }

    @Override
    public void finish(OpenWindow window, int imm, long weight, int pageCount, long bytes) {
        add(window, imm, weight, pageCount, bytes, true);
    }

    @Override
    public void passBy(long bytes) {
        if (framesEnded == framesSettled) {
            events.onTaken(bytes);
            return;
        }
        int at = place(framesEnded++);
        windows[at] = null;
        weights[at] = 0;
        payloadBytes[at] = bytes;
        isFrame[at] = true;
        lanes[at] = null;
    }

    @Override
    public void abandon(OpenWindow window) {
        if (lane == null) {
            window.endLanding(); // its copies have failed: none of them runs
            return;
        }
        add(window, 0, 0, 0, 0, false);
        copyLanded();
    }

    private void add(OpenWindow window, int imm, long weight, int pageCount, long bytes, boolean frame) {
        int at = place(framesEnded++);
        windows[at] = window;
        imms[at] = imm;
        weights[at] = weight;
        pageCounts[at] = pageCount;
        payloadBytes[at] = bytes;
        isFrame[at] = frame;
        lanes[at] = lane;
        marks[at] = lane.nextMark();
        unmarked = true;
    }

    private static int place(long frame) {
        return (int) frame & (FRAMES_MAX - 1);
    }

    @Override
    public boolean takesFrames() {
        boolean takes = framesEnded - framesSettled < FRAMES_MAX - FRAMES_SPARE;
        waits |= !takes;
        return takes;
    }

    @Override
    public void copyLanded() {
        if (!queueCopy()) {
            return;
        }
        int used = slab;
        long mark = lane == null ? 0 : lane.nextMark();
        slab = SlabPool.NONE;
        boolean isMarked = unmarked;
        unmarked = false;
        if (used != SlabPool.NONE && isMarked) {
            copiedSlabs[copiedCount] = used;
            copiedBy[copiedCount] = lane;
            copiedMarks[copiedCount++] = mark;
        } else if (used != SlabPool.NONE) {
            pool.give(holder, used);
        }
        if (isMarked) {
            lane.mark();
        }
    }

    @Override
    public boolean isSettled() {
        return framesEnded == framesSettled && copiedCount == 0;
    }

    @Override
    public void close() {
        closed = true;
        waits = false;
        copyLanded();
    }

    boolean isOver() {
        return closed && isSettled();
    }

    /** Counts what was copied, and frees its room; returns the amount of work done. */
    int poll() {
        try {
            int work = settleFrames() + settleSlabs();
            if (waits && takesFrames() && roomBytes() > 0) {
                events.onRoom();
            }
            return work;
        } catch (RuntimeException | Error error) {
            events.onError(error);
            return 1;
        }
    }

    private int settleFrames() {
        int work = 0;
        while (framesSettled < framesEnded) {
            int at = place(framesSettled);
            if (lanes[at] != null && !lanes[at].isDone(marks[at])) {
                break; // after a fault there are none left
            }
            framesSettled++;
            work++;
            settle(at);
        }
        return work;
    }

    private void settle(int at) {
        OpenWindow window = windows[at];
        windows[at] = null;
        lanes[at] = null;
        if (window != null) {
            window.endLanding();
        }
        if (weights[at] > 0) {
            figures.add(TransferCounter.BYTES_RECEIVED, payloadBytes[at]);
            figures.add(TransferCounter.PAGES_RECEIVED, pageCounts[at]);
            port.onArrived(from, imms[at], weights[at]);
        }
        if (isFrame[at]) {
            events.onTaken(payloadBytes[at]);
        }
    }

    private int settleSlabs() {
        int work = 0;
        while (copiedCount > 0 && copiedBy[0].isDone(copiedMarks[0])) {
            pool.give(holder, copiedSlabs[0]);
            copiedCount--;
            System.arraycopy(copiedSlabs, 1, copiedSlabs, 0, copiedCount);
            System.arraycopy(copiedBy, 1, copiedBy, 0, copiedCount);
            System.arraycopy(copiedMarks, 1, copiedMarks, 0, copiedCount);
            work++;
        }
        return work;
    }

    /** Releases the windows uncounted, and ends the path. Copies of other devices are awaited, and not counted. */
    @Override
    public void onCopiesFailed(CopyLane failed, DeviceFault fault) {
        if (!uses(failed)) {
            return;
        }
        if (lane == failed) {
            dropLanded();
        } else {
            copyLanded();
        }
        waits = false;
        dropFrames(failed);
        dropSlabs(failed);
        if (!closed) {
            events.onCopyFailed(fault.getMessage());
        }
    }

    /** Nothing queued is running, and no copy of this landing will follow. */
    void dropLanded() {
        if (slab != SlabPool.NONE) {
            pool.give(holder, slab);
            slab = SlabPool.NONE;
        }
        lane = null;
        unmarked = false;
        copyBytes = 0;
    }

    private void dropFrames(CopyLane failed) {
        for (long frame = framesSettled; frame < framesEnded; frame++) {
            int at = place(frame);
            weights[at] = 0;
            isFrame[at] = false;
            if (lanes[at] == failed) {
                lanes[at] = null;
            }
        }
        settleFrames();
    }

    private void dropSlabs(CopyLane failed) {
        int kept = 0;
        for (int i = 0; i < copiedCount; i++) {
            if (copiedBy[i] == failed) {
                pool.give(holder, copiedSlabs[i]);
            } else {
                copiedSlabs[kept] = copiedSlabs[i];
                copiedBy[kept] = copiedBy[i];
                copiedMarks[kept++] = copiedMarks[i];
            }
        }
        copiedCount = kept;
    }

    private boolean uses(CopyLane failed) {
        boolean uses = unmarked && lane == failed;
        for (int i = 0; i < copiedCount; i++) {
            uses |= copiedBy[i] == failed;
        }
        for (long frame = framesSettled; frame < framesEnded; frame++) {
            uses |= lanes[place(frame)] == failed;
        }
        return uses;
    }
}
