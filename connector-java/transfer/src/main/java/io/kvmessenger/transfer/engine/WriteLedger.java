package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import io.kvmessenger.transfer.staging.GatheredWrites;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The writes of one traffic class to one peer, in order of submission, until each has completed exactly once; and which path holds which of
 * their pages.
 *
 * <p>One thread submits; the worker takes slices, posts them to paths and records which were sent, in any order. Slices
 * of a lost path are posted again before anything new. A request is identified by its position in the order of
 * submission, a post by an id; neither is ever reused, so late events match nothing. It selects no path and reads no
 * clock.
 */
final class WriteLedger {
    /** Receives completions. Worker only. */
    interface Completions {
        void onCompleted(int origin, long cookie);

        void onFailed(int origin, long cookie, TransferFault fault, String detail);
    }

    /** Origin: a write submitted by the engine's user. */
    static final int OF_USER = 0;
    /** Origin: a part of a request to a group; its cookie belongs to {@link GroupPosts}. */
    static final int OF_GROUP = 1;
    /** Origin: a part of a peer's read; its cookie belongs to {@link ReadDesk}. */
    static final int OF_READ = 2;

    /** Pages of a lost path that have to be posted again. */
    private record Slice(long position, int firstUnit, int unitCount) {}

    private static final int POSTS_MIN = 64;
    static final long NO_POST = -1;

    private final Completions completions;
    private final int mask;
    private final TransferRequest[] requests;
    private final long[] cookies;
    /** The origin of each request, which its cookie belongs to. */
    private final byte[] origins;

    private final AtomicLong submitted = new AtomicLong();
    private final AtomicLong retired = new AtomicLong();
    /** Bytes of all requests ever submitted. */
    private final AtomicLong submittedBytes = new AtomicLong();
    /** Of these, the bytes that were sent or never will be. */
    private final AtomicLong endedBytes = new AtomicLong();
    /** Bytes that a path holds or held, or that never will be posted. Worker only. */
    private long takenBytes;

    /** Units of each request that have not been sent. */
    private final int[] unitsLeft;

    private final boolean[] done;
    private long cutPosition;
    private int cutUnit;

    private final Posts posts;
    private final ArrayDeque<Slice> again = new ArrayDeque<>();
    private boolean offersAgain;

    /** @param capacity a power of two */
    WriteLedger(int capacity, Completions completions) {
        this.completions = completions;
        mask = capacity - 1;
        requests = new TransferRequest[capacity];
        cookies = new long[capacity];
        origins = new byte[capacity];
        unitsLeft = new int[capacity];
        done = new boolean[capacity];
        posts = new Posts(Math.max(POSTS_MIN, 2 * capacity));
    }

    /** Submitter: whether {@link #offer} will succeed. */
    boolean hasRoom() {
        return submitted.getPlain() - retired.getAcquire() <= mask;
    }

    /** Submitter: appends a write of the user's; false when full. */
    boolean offer(TransferRequest request, long cookie) {
        return offer(request, cookie, OF_USER);
    }

    /** Submitter: appends; false when full. */
    boolean offer(TransferRequest request, long cookie, int origin) {
        if (!hasRoom()) {
            return false;
        }
        long position = submitted.getPlain();
        int entry = (int) position & mask;
        requests[entry] = request;
        cookies[entry] = cookie;
        origins[entry] = (byte) origin;
        submittedBytes.setOpaque(submittedBytes.getPlain() + WriteBatch.payloadBytesOf(request));
        submitted.setRelease(position + 1);
        return true;
    }

    /** Worker: whether anything waits for a path. */
    boolean hasWork() {
        return !again.isEmpty() || cutPosition != submitted.getAcquire();
    }

    /** Worker: whether every write submitted has completed or failed. */
    boolean isEmpty() {
        return retired.getPlain() == submitted.getAcquire();
    }

    /** Worker: bytes waiting for a path; may include a request that is still being submitted. */
    long waitingBytes() {
        return submittedBytes.getOpaque() - takenBytes;
    }

    /** Any thread: bytes that have not ended; may include a request that is still being submitted. */
    long queuedBytes() {
        long ended = endedBytes.getOpaque(); // read first, so that it cannot exceed what was submitted
        return submittedBytes.getOpaque() - ended;
    }

    /** Worker: bytes that have ended. */
    long endedBytes() {
        return endedBytes.getPlain();
    }

    /** Worker: bytes that paths hold. */
    long inFlightBytes() {
        return takenBytes - endedBytes.getPlain();
    }

    /** Worker: describes the next batch to post; false when there is none, or too much is in flight. */
    boolean next(WriteBatch batch) {
        if (!posts.hasRoom()) {
            return false;
        }
        Slice slice = again.peek();
        offersAgain = slice != null;
        if (slice != null) {
            batch.set(slice.position, requests[(int) slice.position & mask], slice.firstUnit, slice.unitCount);
            return true;
        }
        while (cutPosition != submitted.getAcquire()) {
            int entry = (int) cutPosition & mask;
            TransferRequest request = requests[entry];
            int count = WriteBatch.unitCountOf(request);
            if (count > 0) {
                batch.set(cutPosition, request, cutUnit, count - cutUnit);
                return true;
            }
            cutPosition++;
            complete(entry);
        }
        return false;
    }

    /** Worker: the id of the next post. */
    long nextPostId() {
        return posts.nextId();
    }

    /** Worker: a path has accepted the batch described by {@link #next}, or its first part. */
    void posted(WriteBatch batch, Endpoint by) {
        posts.begin(batch, by);
        takenBytes += batch.payloadBytes();
        if (!offersAgain) {
            onCut(batch);
            return;
        }
        Slice slice = again.remove();
        int left = slice.unitCount - batch.unitCount();
        if (left > 0) {
            again.addFirst(new Slice(slice.position, slice.firstUnit + batch.unitCount(), left));
        }
    }

    private void onCut(WriteBatch batch) {
        int entry = (int) cutPosition & mask;
        int count = WriteBatch.unitCountOf(requests[entry]);
        if (cutUnit == 0) {
            unitsLeft[entry] = count;
        }
        cutUnit += batch.unitCount();
        if (cutUnit == count) {
            cutPosition++;
            cutUnit = 0;
        }
    }

    /** Worker: a post does not need its source any more. An id that is not in flight has no effect. */
    void sent(long postId) {
        int post = posts.find(postId);
        if (post < 0) {
            return;
        }
        int entry = (int) posts.positions[post] & mask;
        unitsLeft[entry] -= posts.unitCounts[post];
        endedBytes.setOpaque(endedBytes.getPlain() + payloadBytesOf(post));
        posts.end(post);
        if (unitsLeft[entry] < 0) {
            throw new AssertionError("more was sent of a request than it is made of");
        }
        if (unitsLeft[entry] == 0) {
            complete(entry);
        }
    }

    /** Worker: whether {@link #split} can be called now. */
    boolean canSplit() {
        return posts.hasRoom();
    }

    /** As {@link GatheredWrites.Splitter#split}. */
    long split(long postId, int unitCount) {
        int post = posts.find(postId);
        if (post < 0 || unitCount < 1 || unitCount >= posts.unitCounts[post]) {
            throw new AssertionError("of a post that is no longer one, " + unitCount + " units are split");
        }
        return posts.split(post, unitCount);
    }

    /** Worker: the path is gone; its unsent slices wait for another path. Returns the number of posts. */
    int reclaim(Endpoint lost) {
        int count = 0;
        for (int post = 0; post < posts.capacity; post++) {
            if (posts.isUnderWay(post) && posts.endpoints[post] == lost) {
                again.add(new Slice(posts.positions[post], posts.firstUnits[post], posts.unitCounts[post]));
                takenBytes -= payloadBytesOf(post);
                posts.end(post);
                count++;
            }
        }
        return count;
    }

    private long payloadBytesOf(int post) {
        TransferRequest request = requests[(int) posts.positions[post] & mask];
        return WriteBatch.payloadBytesOf(request) / WriteBatch.unitCountOf(request) * posts.unitCounts[post];
    }

    /** Worker: whether the path holds posts not reported as sent. */
    boolean isUnderWay(Endpoint by) {
        for (int post = 0; post < posts.capacity; post++) {
            if (posts.isUnderWay(post) && posts.endpoints[post] == by) {
                return true;
            }
        }
        return false;
    }

    /** Worker: the oldest post of the path that is not reported as sent, or {@link #NO_POST}. */
    long oldestPost(Endpoint by) {
        long oldest = NO_POST;
        for (int post = 0; post < posts.capacity; post++) {
            if (posts.isUnderWay(post)
                    && posts.endpoints[post] == by
                    && (oldest == NO_POST || posts.ids[post] < oldest)) {
                oldest = posts.ids[post];
            }
        }
        return oldest;
    }

    private void complete(int entry) {
        completions.onCompleted(origins[entry], cookies[entry]);
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

    /** Worker: fails everything that has not completed; all paths are closed already. Returns how many. */
    int failAll(TransferFault fault, String detail) {
        long end = submitted.getAcquire();
        int failed = 0;
        for (long position = retired.getPlain(); position < end; position++) {
            int entry = (int) position & mask;
            if (!done[entry]) {
                completions.onFailed(origins[entry], cookies[entry], fault, detail);
                done[entry] = true;
                failed++;
            }
        }
        cutPosition = end;
        cutUnit = 0;
        again.clear();
        posts.clear();
        takenBytes = submittedBytes.getOpaque();
        endedBytes.setOpaque(takenBytes);
        retire();
        return failed;
    }

    /** The posts that paths hold. The low bits of an id are its index, so no search is needed. */
    private static final class Posts {
        final int capacity;
        /** Allocated by the first post: many peers never need it. */
        long[] ids;

        long[] positions;
        int[] firstUnits;
        int[] unitCounts;
        Endpoint[] endpoints;
        private int[] free;
        private int freeCount;
        private long serial;

        Posts(int capacity) {
            this.capacity = capacity;
        }

        boolean hasRoom() {
            if (ids == null) {
                ids = new long[capacity];
                positions = new long[capacity];
                firstUnits = new int[capacity];
                unitCounts = new int[capacity];
                endpoints = new Endpoint[capacity];
                free = new int[capacity];
                clear();
            }
            return freeCount > 0;
        }

        long nextId() {
            return serial * capacity + free[freeCount - 1];
        }

        void begin(WriteBatch batch, Endpoint by) {
            int post = free[freeCount - 1];
            ids[post] = nextId();
            positions[post] = batch.position();
            firstUnits[post] = batch.firstUnit();
            unitCounts[post] = batch.unitCount();
            endpoints[post] = by;
            freeCount--;
            serial++;
        }

        long split(int post, int unitCount) {
            int rest = free[freeCount - 1];
            ids[rest] = nextId();
            positions[rest] = positions[post];
            firstUnits[rest] = firstUnits[post] + unitCount;
            unitCounts[rest] = unitCounts[post] - unitCount;
            endpoints[rest] = endpoints[post];
            unitCounts[post] = unitCount;
            freeCount--;
            serial++;
            return ids[rest];
        }

        /** The index of a post in flight, or negative. */
        int find(long id) {
            int post = (int) Math.floorMod(id, (long) capacity);
            return ids != null && id >= 0 && ids[post] == id ? post : -1;
        }

        boolean isUnderWay(int post) {
            return ids != null && ids[post] != NO_POST;
        }

        void end(int post) {
            ids[post] = NO_POST;
            endpoints[post] = null;
            free[freeCount++] = post;
        }

        void clear() {
            if (ids != null) {
                Arrays.fill(ids, NO_POST);
                Arrays.fill(endpoints, null);
                for (freeCount = 0; freeCount < capacity; freeCount++) {
                    free[freeCount] = freeCount;
                }
            }
        }
    }
}
