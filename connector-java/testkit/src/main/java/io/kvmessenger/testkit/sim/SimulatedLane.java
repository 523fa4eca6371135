package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;

/** One of several lanes of a {@link SimulatedOutboundLink}: accepts posts until it breaks. Worker only. */
final class SimulatedLane implements Endpoint {
    final SimulatedOutboundLink link;
    /** Nothing more leaves on it; its posts wait for the target's report. */
    boolean broken;
    /** Its posts silently reach nothing. */
    boolean swallows;

    SimulatedLane(SimulatedOutboundLink link) {
        this.link = link;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        return broken ? 0 : link.post(batch, postId, this);
    }

    @Override
    public boolean mayOweDelivery() {
        return link.mayOweDelivery();
    }

    @Override
    public void giveUp() {
        link.giveUp(this);
    }
}
