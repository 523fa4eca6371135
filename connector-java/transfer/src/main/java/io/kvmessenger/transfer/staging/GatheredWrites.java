package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The writes to one peer whose pages are in device memory, for paths that read host memory only: copied into a slab,
 * then given to the path that they were posted to.
 *
 * <p>Worker only. While a path sends one slab, the next is being gathered. A slab is freed when the path has reported
 * all of it as sent, or is closed; one that is being filled, only when its copies are done. It makes no decisions about
 * paths.
 */
public final class GatheredWrites implements CopyLane.User {
    /** Limit on posts of one path that are gathered or being gathered, and not given to it yet. */
    private static final int AHEAD_MAX = 2;

    private static final int PARTS_MIN = 4;

    /** Splits posts: each write that a path makes of one becomes a post of its own, known as sent or not. */
    public interface Splitter {
        /** Whether {@link #split} can be called now. */
        boolean canSplit();

        /** Reduces the post to {@code unitCount} units, fewer than it has; returns the id of the rest. */
        long split(long postId, int unitCount);
    }

    /** One post of the ledger, which its path may make several writes of. */
    private static final class Post {
        /** Id of the part that the path has not been given. */
        long restId;

        Endpoint path;
        TransferRequest request;
        long position;
        int firstUnit;
        int unitCount;
        int slab;
        CopyLane lane;
        long mark;
        boolean gathered;
        /** Units that the path has accepted. */
        int givenCount;

        /** Ids of the writes that the path has made of it and has not reported as sent. */
        long[] partIds = new long[PARTS_MIN];

        int partCount;
        /** Its path is closed: it only waits for its slab. */
        boolean dropped;
    }

    private final Staging staging;
    private final SlabPool pool;
    private final Splitter splitter;
    private final SlabPool.Holder holder = new SlabPool.Holder();
    /** In order of posting. */
    private final List<Post> posts = new ArrayList<>();

    private final List<Post> unused = new ArrayList<>();
    private final WriteBatch batch = new WriteBatch();
    /** No slab was free in this duty cycle. */
    private boolean starved;

    private DeviceFault fault;

    GatheredWrites(Staging staging, SlabPool pool, Splitter splitter) {
        this.staging = staging;
        this.pool = pool;
        this.splitter = splitter;
    }

    /**
     * As {@link Endpoint#post}, for a batch that reads device memory.
     *
     * @return the units taken; 0 when there is no room now, or never again if {@link #fault} is set
     */
    public int post(Endpoint path, WriteBatch wanted, long postId) {
        if (fault != null || aheadOf(path) >= AHEAD_MAX) {
            return 0;
        }
        long slabBytes = staging.limits().slabBytes();
        boolean isLong = wanted.pageBytes() > slabBytes;
        long roomBytes = isLong ? staging.limits().pageMaxBytes() : slabBytes;
        int taken = wanted.limit(path.gatheredPagesMax(), Math.min(roomBytes, path.gatheredBytesMax()), Long.MAX_VALUE);
        if (wanted.payloadBytes() > roomBytes) {
            // The copy would go beyond the pinned memory: a check was left out before the page was queued.
            throw new AssertionError(
                    wanted.payloadBytes() + " bytes were to be gathered in " + roomBytes + " bytes of slabs");
        }
        int slab = pool.take(holder, isLong ? staging.limits().longSlabCount() : 1);
        if (slab == SlabPool.NONE) {
            starved = true;
            return 0;
        }
        Post post = unused.isEmpty() ? new Post() : unused.removeLast();
        post.restId = postId;
        post.path = path;
        post.request = wanted.request();
        post.position = wanted.position();
        post.firstUnit = wanted.firstUnit();
        post.unitCount = taken;
        post.slab = slab;
        post.gathered = false;
        post.givenCount = 0;
        post.partCount = 0;
        post.dropped = false;
        post.lane = staging.laneToHost(wanted.sourceDevice().ordinal());
        post.mark = post.lane.nextMark();
        posts.add(post);
        return gather(wanted, post) ? taken : 0;
    }

    /** Copies the pages into the slab; pages that are contiguous in the source are copied as one. */
    private boolean gather(WriteBatch wanted, Post post) {
        Memory.Device source = wanted.sourceDevice();
        long to = pool.address(post.slab);
        long pageBytes = wanted.pageBytes();
        int count = wanted.pageCount();
        for (int i = 0; i < count && pageBytes > 0; ) {
            long from = wanted.sourceOffsetBytes(i);
            long lengthBytes = pageBytes;
            int next = i + 1;
            while (next < count && wanted.sourceOffsetBytes(next) == from + lengthBytes) {
                lengthBytes += pageBytes;
                next++;
            }
            if (!post.lane.toHost(to + i * pageBytes, source.address() + from, lengthBytes)) {
                return false;
            }
            i = next;
        }
        return post.lane.mark();
    }

    private int aheadOf(Endpoint path) {
        int count = 0;
        for (int i = 0; i < posts.size(); i++) {
            Post post = posts.get(i);
            count += post.path == path && post.givenCount < post.unitCount ? 1 : 0;
        }
        return count;
    }

    /** Bytes posted to the path that it has not been given yet. */
    public long heldBytes(Endpoint path) {
        long bytes = 0;
        for (int i = 0; i < posts.size(); i++) {
            Post post = posts.get(i);
            if (post.path == path) {
                batch.set(post.position, post.request, post.firstUnit, post.unitCount - post.givenCount);
                bytes += post.givenCount < post.unitCount ? batch.payloadBytes() : 0;
            }
        }
        batch.clear();
        return bytes;
    }

    /** Begins a duty cycle, in which posts that wait for room must ask again or lose their place. */
    public void begin() {
        if (!starved) {
            pool.rest(holder);
        }
        starved = false;
    }

    /** Gives gathered posts to their paths; returns the amount of work done. */
    public int doWork() {
        int work = seeGathered();
        for (int i = 0; i < posts.size(); i++) {
            Post post = posts.get(i);
            if (post.gathered && post.dropped) {
                posts.remove(i--);
                giveBack(post);
            } else if (post.gathered && post.givenCount < post.unitCount) {
                work += give(post);
            }
        }
        batch.clear();
        return work;
    }

    /** Checks which posts are gathered; a fault may remove posts meanwhile. */
    private int seeGathered() {
        int work = 0;
        for (int i = posts.size() - 1; i >= 0; i = Math.min(i, posts.size()) - 1) {
            Post post = posts.get(i);
            if (!post.gathered && post.lane.isDone(post.mark)) {
                post.gathered = true;
                work++;
            }
        }
        return work;
    }

    /** Gives a post to its path, which may make several writes of it; returns how many. */
    private int give(Post post) {
        int count = 0;
        MemorySegment host = pool.memory();
        while (post.givenCount < post.unitCount && splitter.canSplit()) {
            int left = post.unitCount - post.givenCount;
            batch.set(post.position, post.request, post.firstUnit + post.givenCount, left);
            batch.gatheredIn(
                    host,
                    pool.offsetBytes(post.slab) + post.givenCount * batch.pageBytes(),
                    post.givenCount == 0 ? pool.roomBytes() : 0);
            int taken = post.path.post(batch, post.restId);
            if (taken == 0) {
                break;
            }
            if (post.partCount == post.partIds.length) {
                post.partIds = Arrays.copyOf(post.partIds, 2 * post.partCount);
            }
            post.partIds[post.partCount++] = post.restId;
            post.givenCount += taken;
            post.restId = taken < left ? splitter.split(post.restId, taken) : post.restId;
            count++;
        }
        return count;
    }

    /** A path has reported a write as sent: frees its slab if it was the last one. */
    public void onSent(long postId) {
        for (int i = 0; i < posts.size(); i++) {
            Post post = posts.get(i);
            if (!post.dropped && removePart(post, postId)) {
                if (post.partCount == 0 && post.givenCount == post.unitCount) {
                    posts.remove(i);
                    giveBack(post);
                }
                return;
            }
        }
    }

    private static boolean removePart(Post post, long postId) {
        for (int i = 0; i < post.partCount; i++) {
            if (post.partIds[i] == postId) {
                post.partIds[i] = post.partIds[--post.partCount];
                return true;
            }
        }
        return false;
    }

    /** The path is closed and reads nothing any more: its posts are posted anew. */
    public void onPathLost(Endpoint path) {
        drop(path);
    }

    /** All paths are closed, and nothing more is posted. */
    public void close() {
        drop(null);
        pool.rest(holder);
    }

    /** @param path null for all */
    private void drop(Endpoint path) {
        for (int i = posts.size() - 1; i >= 0; i--) {
            Post post = posts.get(i);
            if (path != null && post.path != path) {
                continue;
            }
            post.dropped = true;
            post.path = null;
            post.request = null;
            if (post.gathered) {
                posts.remove(i);
                giveBack(post);
            }
        }
    }

    /** Whether a copy may still read pages, which must not be released before it ends. */
    public boolean isReading() {
        for (int i = 0; i < posts.size(); i++) {
            if (!posts.get(i).gathered) {
                return true;
            }
        }
        return false;
    }

    /** Whether the post is being gathered, so that its path has been given none of it. */
    public boolean isGathering(long postId) {
        for (int i = 0; i < posts.size(); i++) {
            Post post = posts.get(i);
            if (!post.gathered && !post.dropped && post.restId == postId) {
                return true;
            }
        }
        return false;
    }

    /** Why nothing more can be gathered for the peer, or null. */
    public DeviceFault fault() {
        return fault;
    }

    @Override
    public void onCopiesFailed(CopyLane lane, DeviceFault reason) {
        for (int i = posts.size() - 1; i >= 0; i--) {
            Post post = posts.get(i);
            if (post.gathered || post.lane != lane) {
                continue;
            }
            if (!post.dropped) {
                fault = reason;
            }
            posts.remove(i);
            giveBack(post);
        }
    }

    private void giveBack(Post post) {
        pool.give(holder, post.slab);
        post.path = null;
        post.request = null;
        post.lane = null;
        unused.add(post);
    }
}
