package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/** The writer's end of a simulated data path. Worker only. */
final class SimulatedOutboundLink implements OutboundPaths, Endpoint {
    private static final long POST_BYTES_MAX = 1 << 20;

    final SimulatedTransport transport;
    final FabricLink control;
    /** Whether it belongs to the domain of the fallback. */
    final boolean next;

    final Set<FabricWrite.Post> posts = new LinkedHashSet<>();
    /** Null until the target has accepted it. */
    FabricPath path;

    private final SimulatedFabric fabric;
    private final PathEvents events;
    private final SplittableRandom random;
    private final int pagesMax;
    private final boolean joinsPages;
    /** Lanes that accept posts, if there are several. */
    final List<SimulatedLane> lanes = new ArrayList<>();

    private boolean ready;
    private boolean closed;
    private boolean hasPosted;

    SimulatedOutboundLink(
            SimulatedTransport transport,
            SimulatedFabric fabric,
            FabricLink control,
            boolean next,
            PathEvents events,
            SplittableRandom random) {
        this.transport = transport;
        this.control = control;
        this.next = next;
        this.fabric = fabric;
        this.events = events;
        this.random = random;
        pagesMax = fabric.shape().drawPagesPerPost(random);
        joinsPages = fabric.shape().drawJoinsPages(random);
    }

    boolean isOpen() {
        return ready && !closed;
    }

    boolean hasLanes() {
        return fabric.shape().lanes().several();
    }

    boolean isClosed() {
        return closed;
    }

    void onReady() {
        if (!closed) {
            ready = true;
            if (fabric.shape().lanes().several()) {
                IntStream.range(0, fabric.shape().lanes().count()).forEach(i -> openLane());
            } else {
                events.onPathOpened(this);
            }
            events.onReady();
        }
    }

    /** The path is lost; completions that follow may still be reported. */
    void lose(TransferFault fault, String detail) {
        if (closed) {
            return;
        }
        end();
        events.onFailed(fault, detail);
        for (FabricWrite.Post flushed : List.copyOf(posts)) {
            if (random.nextBoolean()) {
                reportSent(flushed);
            }
        }
    }

    private void openLane() {
        if (!closed) {
            SimulatedLane lane = new SimulatedLane(this);
            lanes.add(lane);
            events.onPathOpened(lane);
        }
    }

    /** The target has reported what it took of the lane's posts; another lane is opened in its place. */
    void lose(SimulatedLane lane) {
        if (closed) {
            return;
        }
        lanes.remove(lane);
        for (FabricWrite.Post post : List.copyOf(posts)) {
            if (post.lane == lane) {
                boolean reported = fabric.mutation() != Mutation.REPEATED_THOUGH_TAKEN && post.taken;
                if (reported || fabric.mutation() == Mutation.LOST_AND_NOT_REPEATED || isFallMutant()) {
                    reportSent(post);
                } else {
                    posts.remove(post);
                }
            }
        }
        events.onPathLost(lane);
        fabric.afterRest(this, this::openLane);
    }

    /** The lane has reported nothing about its posts for too long. */
    void giveUp(SimulatedLane lane) {
        if (fabric.mutation() != Mutation.SILENCE_BORNE) {
            fabric.giveUp(lane);
        }
    }

    private boolean isFallMutant() {
        return fabric.mutation() == Mutation.FALL_FORGETS
                && lanes.isEmpty()
                && fabric.shape().fall().domains() > 1;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        return post(batch, postId, null);
    }

    /** @param lane that takes it, or null if there are none */
    int post(WriteBatch batch, long postId, SimulatedLane lane) {
        if (fabric.backPressures()) {
            fabric.wakeLater(transport);
            return 0;
        }
        transport.throwIfItFails();
        fabric.guard(() -> take(batch, postId, lane));
        return batch.unitCount();
    }

    private void take(WriteBatch batch, long postId, SimulatedLane lane) {
        batch.limit(pagesMax, POST_BYTES_MAX, Imm.WEIGHT_MAX);
        FabricWrite.Post post = new FabricWrite.Post(path, postId, lane);
        posts.add(post);
        hasPosted = true;
        if (batch.pageCount() == 0) {
            post.unfinished++;
            fabric.postImmediate(post, batch);
            return;
        }
        int weight = (int) (batch.weight() / batch.pageCount());
        int pages;
        for (int i = 0; i < batch.pageCount(); i += pages) {
            pages = joinsPages ? batch.runLength(i) : 1;
            post.unfinished++;
            fabric.post(post, batch, i, pages, Imm.withWeight(batch.window(), weight * pages));
        }
    }

    /** As with verbs: a write that is complete here may be lost with the target's queue before it is counted there. */
    @Override
    public boolean mayOweDelivery() {
        return fabric.countsAfterCompletion() && hasPosted;
    }

    /** Does nothing: posts move by themselves. */
    @Override
    public int doWork(long nowNs) {
        return 0;
    }

    /** One write of the post does not need its source any more. */
    void finished(FabricWrite.Post post) {
        if (--post.unfinished == 0 && posts.contains(post)) {
            reportSent(post);
        }
    }

    /** The target's report that it took a post has arrived; too late if the post was lost with its lane. */
    void taken(FabricWrite.Post post) {
        if (posts.contains(post)) {
            reportSent(post);
        }
    }

    private void reportSent(FabricWrite.Post post) {
        if (fabric.mutation() == Mutation.ANOTHER_COMPLETED) {
            exchange(post);
        }
        posts.remove(post);
        events.onSent(post.id);
    }

    /** The mutant: the completions of two requests are exchanged. */
    private void exchange(FabricWrite.Post post) {
        for (FabricWrite.Post other : posts) {
            long id = other.id;
            if (id != post.id) {
                other.id = post.id;
                post.id = id;
                return;
            }
        }
    }

    @Override
    public void close() {
        if (!closed) {
            end();
            fabric.sourceClosed(this);
        }
    }

    /** Ends without notice: the path or the process is over. */
    void end() {
        closed = true;
        transport.links.remove(this);
        fabric.endSource(this);
    }
}
