package io.kvmessenger.testkit.sim;

/** The data paths from one peer to one admission, as far as each end still has them. State only. */
final class FabricPath {
    final SimulatedTransferEngine source;
    final SimulatedTransferEngine target;
    final SimulatedTransferEngine.OutboundPeer peer;
    final SimulatedTransferEngine.Admitted admitted;

    /** The source reads and sends nothing any more. */
    boolean sourceGone;
    /** Nothing lands in the target any more. */
    boolean targetGone;

    FabricPath(
            SimulatedTransferEngine source,
            SimulatedTransferEngine target,
            SimulatedTransferEngine.OutboundPeer peer,
            SimulatedTransferEngine.Admitted admitted) {
        this.source = source;
        this.target = target;
        this.peer = peer;
        this.admitted = admitted;
    }
}
