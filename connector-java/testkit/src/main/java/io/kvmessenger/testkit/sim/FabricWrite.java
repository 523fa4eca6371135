package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.PageWrite;
import io.kvmessenger.transfer.Region;

/** One page on its way, and the batch whose completion it is part of. State only; {@link SimulatedFabric} moves it. */
final class FabricWrite {
    /** What one {@code submit} took. */
    static final class Batch {
        final FabricPath path;
        final long cookie;
        int unfinished;
        boolean ended;

        Batch(FabricPath path, long cookie, int unfinished) {
            this.path = path;
            this.cookie = cookie;
            this.unfinished = unfinished;
        }
    }

    final PageWrite facts;
    final Batch batch;
    final Region sourceRegion;
    final int targetRegionId;
    byte[] payload;
    /** Bytes that have landed or were discarded. */
    int passedBytes;

    boolean discarded;
    boolean gone;

    FabricWrite(PageWrite facts, Batch batch, Region sourceRegion, int targetRegionId) {
        this.facts = facts;
        this.batch = batch;
        this.sourceRegion = sourceRegion;
        this.targetRegionId = targetRegionId;
    }

    FabricPath path() {
        return batch.path;
    }
}
