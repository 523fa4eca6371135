package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The writes to one peer, in the order of submission, until each has completed exactly once.
 *
 * <p>One thread offers; the worker cuts requests into batches, which may be done in any order. A place is free again
 * when its request and all older ones have completed. A request is named by its position in the order of submission,
 * which is never used again: its place is.
 */
public final class RequestQueue {
    /** Where completions go. Worker only. */
    public interface Completions {
        void onCompleted(long cookie);

        void onFailed(long cookie, TransferFault fault, String detail);
    }

    private final Completions completions;
    private final int mask;
    private final TransferRequest[] requests;
    private final long[] cookies;
    private final AtomicLong submitted = new AtomicLong();
    private final AtomicLong retired = new AtomicLong();

    private final int[] batchesOutstanding;
    private final boolean[] done;
    private long cutPosition;
    private int cutPage;
    /** What lies before has failed: its batches may still be reported done. */
    private long failedEnd;

    /** @param capacity a power of two */
    public RequestQueue(int capacity, Completions completions) {
        this.completions = completions;
        mask = capacity - 1;
        requests = new TransferRequest[capacity];
        cookies = new long[capacity];
        batchesOutstanding = new int[capacity];
        done = new boolean[capacity];
    }

    /** Submitter: whether {@link #offer} will succeed. */
    public boolean hasRoom() {
        return submitted.getPlain() - retired.getAcquire() <= mask;
    }

    /** Submitter: appends; false when full. */
    public boolean offer(TransferRequest request, long cookie) {
        if (!hasRoom()) {
            return false;
        }
        long position = submitted.getPlain();
        int entry = (int) position & mask;
        requests[entry] = request;
        cookies[entry] = cookie;
        submitted.setRelease(position + 1);
        return true;
    }

    /** Worker: whether there is something to cut. */
    public boolean hasWork() {
        return cutPosition != submitted.getAcquire();
    }

    /**
     * Worker: cuts the next batch, of at least one page; false when there is nothing.
     *
     * @param weightMax the most that one batch may weigh
     */
    public boolean cut(Batch batch, int pagesMax, long bytesMax, long weightMax) {
        while (hasWork()) {
            int entry = (int) cutPosition & mask;
            TransferRequest request = requests[entry];
            int left = Batch.pageCountOf(request) - cutPage;
            if (left == 0 && !(request instanceof TransferRequest.ImmOnly)) {
                cutEnded(entry);
                continue;
            }
            long fit = Math.min(left, Math.max(1, bytesMax / Math.max(1, Batch.pageBytesOf(request))));
            int weight = Imm.weight(Batch.immOf(request));
            int count = (int) Math.min(Math.min(fit, pagesMax), weight == 0 ? fit : Math.max(1, weightMax / weight));
            batch.set(cutPosition, request, cutPage, count);
            batchesOutstanding[entry]++;
            cutPage += count;
            if (count == left) {
                cutEnded(entry);
            }
            return true;
        }
        return false;
    }

    private void cutEnded(int entry) {
        cutPosition++;
        cutPage = 0;
        if (batchesOutstanding[entry] == 0) {
            complete(entry);
        }
    }

    /**
     * Worker: the batch's source may be reused. Of a request that has failed meanwhile it changes nothing: whether the
     * batch was sent is not known where a path is torn down.
     *
     * @param position {@link Batch#position}
     */
    public void batchDone(long position) {
        if (position < failedEnd) {
            return;
        }
        int entry = (int) position & mask;
        if (position < retired.getPlain() || position > cutPosition || batchesOutstanding[entry] == 0) {
            throw new AssertionError("a batch of request " + position + " is done, and none is under way");
        }
        batchesOutstanding[entry]--;
        boolean cut = position < cutPosition;
        if (batchesOutstanding[entry] == 0 && cut) {
            complete(entry);
        }
    }

    private void complete(int entry) {
        completions.onCompleted(cookies[entry]);
        done[entry] = true;
        retire();
    }

    private void retire() {
        long position = retired.getPlain();
        while (position < cutPosition && done[(int) position & mask]) {
            int entry = (int) position & mask;
            done[entry] = false;
            requests[entry] = null;
            position++;
        }
        retired.setRelease(position);
    }

    /** Worker: fails everything that has not completed; the link is closed already. Returns how many. */
    public int failAll(TransferFault fault, String detail) {
        long end = submitted.getAcquire();
        int failed = 0;
        for (long position = retired.getPlain(); position < end; position++) {
            int entry = (int) position & mask;
            if (!done[entry]) {
                completions.onFailed(cookies[entry], fault, detail);
                done[entry] = true;
                failed++;
            }
            batchesOutstanding[entry] = 0;
        }
        cutPosition = end;
        cutPage = 0;
        failedEnd = end;
        retire();
        return failed;
    }
}
