package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.spi.InboundAdmission;

/** A data path from a link to an admission, with the state of each end. State only. */
final class FabricPath {
    final SimulatedOutboundLink link;
    final FabricLink control;
    final SimulatedTransport source;
    final SimulatedTransport target;
    final InboundAdmission admission;

    /** The source reads and sends nothing any more. */
    boolean sourceGone;
    /** Nothing lands in the target any more. */
    boolean targetGone;

    FabricPath(SimulatedOutboundLink link, SimulatedTransport target, InboundAdmission admission) {
        this.link = link;
        this.control = link.control;
        this.source = link.transport;
        this.target = target;
        this.admission = admission;
    }
}
