package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;

/** One of several lanes of a {@link SimulatedOutboundLink}: takes posts until it breaks. Worker only. */
final class SimulatedLane implements Endpoint {
    final SimulatedOutboundLink link;
    /** Nothing more leaves on it; what it had waits for the word of the target. */
    boolean broken;
    /** What it takes reaches nothing, and nothing says so. */
    boolean swallows;

    SimulatedLane(SimulatedOutboundLink link) {
        this.link = link;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        return broken ? 0 : link.post(batch, postId, this);
    }

    @Override
    public void giveUp() {
        link.giveUp(this);
    }
}
