package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** Contiguous pages in flight, and the post whose completion they are part of. State only. */
final class FabricWrite {
    /** What a link accepted at once, with the id for its completion. */
    static final class Post {
        final FabricPath path;
        /** Null if the link has no lanes. */
        final SimulatedLane lane;
        /** With several lanes: they are counted together, or not at all. */
        final List<FabricWrite> writes = new ArrayList<>();

        long id;
        int unfinished;
        int landedCount;
        /** The target has taken it, and reports so. */
        boolean taken;

        Post(FabricPath path, long id, SimulatedLane lane) {
            this.path = path;
            this.id = id;
            this.lane = lane;
        }
    }

    final PageWrite facts;
    final Post post;
    /** Null if it carries no page. */
    final MemorySegment source;
    /** Offset in {@link #source}; differs from the rank's memory if device pages were gathered. */
    final long readOffset;

    final int targetRegionId;
    byte[] payload;
    /** Bytes that have landed or were discarded. */
    int passedBytes;

    /** At a target that checks writes: the window that it has begun to land in, until released. */
    OpenWindow landingIn;

    /** All of it is in host memory of the target, and waits for a device to copy it. */
    boolean staged;

    boolean landed;
    boolean discarded;
    boolean gone;
    /** It is known, and has been reported, that nothing of it lands any more. */
    boolean reportedGone;

    FabricWrite(PageWrite facts, Post post, MemorySegment source, long readOffset, int targetRegionId) {
        this.facts = facts;
        this.post = post;
        this.source = source;
        this.readOffset = readOffset;
        this.targetRegionId = targetRegionId;
    }

    FabricPath path() {
        return post.path;
    }

    /** Slot and generation, weight zero. */
    int window() {
        return facts.imm() & ~Imm.WEIGHT_MAX;
    }

    /** A write without pages: nothing is read, and nothing lands. */
    boolean isImmediate() {
        return source == null;
    }

    String describe() {
        return "#" + facts.id() + " imm " + Integer.toHexString(facts.imm()) + " " + facts.source() + "+"
                + facts.sourceOffset() + " -> " + facts.target() + "+" + facts.targetOffset();
    }
}
