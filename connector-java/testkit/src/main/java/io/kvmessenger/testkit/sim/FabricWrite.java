package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** Pages that follow each other, on their way, and the post whose completion they are part of. State only. */
final class FabricWrite {
    /** What a link took at once, under the name by which its completion is told. */
    static final class Post {
        final FabricPath path;
        /** Null where the link has but one. */
        final SimulatedLane lane;
        /** Where there are several lanes: all of it is counted at once, or nothing. */
        final List<FabricWrite> writes = new ArrayList<>();

        long id;
        int unfinished;
        int landedCount;
        /** The target has taken it, and says so. */
        boolean taken;

        Post(FabricPath path, long id, SimulatedLane lane) {
            this.path = path;
            this.id = id;
            this.lane = lane;
        }
    }

    final PageWrite facts;
    final Post post;
    /** Null where it carries no page. */
    final MemorySegment source;
    /** Where it is read there: not in a rank's memory where a device's pages were gathered. */
    final long readOffset;

    final int targetRegionId;
    byte[] payload;
    /** Bytes that have landed or were discarded. */
    int passedBytes;

    /** At a target that looks: the window that it has begun to land in, until it has let go. */
    OpenWindow landingIn;

    /** All of it lies in host memory of the target, and a device is to copy it on. */
    boolean staged;

    boolean landed;
    boolean discarded;
    boolean gone;
    /** Nothing of it lands any more, which was told. */
    boolean toldGone;

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

    /** A write of no page: there is nothing to read and nothing to land. */
    boolean isImmediate() {
        return source == null;
    }

    String describe() {
        return "#" + facts.id() + " imm " + Integer.toHexString(facts.imm()) + " " + facts.source() + "+"
                + facts.sourceOffset() + " -> " + facts.target() + "+" + facts.targetOffset();
    }
}
