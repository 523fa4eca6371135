package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundLink;
import java.util.LinkedHashSet;
import java.util.Set;

/**
 * The link between a writer and its target, whatever paths there are; plays the part of the control socket. The
 * admission ends with it, once nothing of the writer can land by any of its paths. State and its direct consequences.
 */
final class FabricLink implements InboundLink {
    /** The writer's end. */
    interface Writer {
        void lose(TransferFault fault, String detail);
    }

    final SimulatedTransport source;
    final byte[] key;
    final Writer writer;
    /** The paths known to the target. */
    final Set<FabricPath> paths = new LinkedHashSet<>();

    private final SimulatedFabric fabric;
    /** Null until the target has accepted a path. */
    SimulatedTransport target;

    InboundAdmission admission;
    /** The target accepts nothing more from it. */
    boolean dismissed;

    private boolean writerGone;
    private boolean over;

    FabricLink(SimulatedFabric fabric, SimulatedTransport source, byte[] key, Writer writer) {
        this.fabric = fabric;
        this.source = source;
        this.key = key;
        this.writer = writer;
    }

    /** Whether the admission belongs to this writer, or is assigned to it now. */
    boolean isAdmitted(SimulatedTransport at, InboundAdmission by) {
        if (by.link() == null && admission == null) {
            target = at;
            admission = by;
            by.claim(this);
            at.admitted.add(this);
        }
        return by.link() == this && !dismissed && !writerGone;
    }

    @Override
    public void revoke(String detail) {
        fabric.revoke(this, detail);
    }

    /** The target is notified that the writer has ended the link, or is dead. */
    void onWriterGone(String detail) {
        writerGone = true;
        fabric.endTargets(this, detail);
        endIfOver(detail);
    }

    /** Ends the admission once the writer is gone or dismissed and its paths are over: nothing can land any more. */
    void endIfOver(String detail) {
        if (admission != null && !over && (writerGone || dismissed) && paths.isEmpty()) {
            over = true;
            target.admitted.remove(this);
            target.port.onClosed(admission, detail);
        }
    }
}
