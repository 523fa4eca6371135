package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundLink;
import java.util.LinkedHashSet;
import java.util.Set;

/**
 * What a writer and its target have with each other, whatever paths there are: the part of a control socket. The admission ends
 * with it, when nothing of the writer can land by any of its paths. State, and what follows from it.
 */
final class FabricLink implements InboundLink {
    /** The writer's end. */
    interface Writer {
        void lose(TransferFault fault, String detail);
    }

    final SimulatedTransport source;
    final byte[] key;
    final Writer writer;
    /** Those that the target has. */
    final Set<FabricPath> paths = new LinkedHashSet<>();

    private final SimulatedFabric fabric;
    /** Null until the target has let a path in. */
    SimulatedTransport target;

    InboundAdmission admission;
    /** The target takes nothing more of it. */
    boolean dismissed;

    private boolean writerGone;
    private boolean over;

    FabricLink(SimulatedFabric fabric, SimulatedTransport source, byte[] key, Writer writer) {
        this.fabric = fabric;
        this.source = source;
        this.key = key;
        this.writer = writer;
    }

    /** Whether the admission is this writer's, or becomes it now. */
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

    /** The target hears that the writer has ended the link, or is dead. */
    void onWriterGone(String detail) {
        writerGone = true;
        fabric.endTargets(this, detail);
        endIfOver(detail);
    }

    /** Nothing of it can land any more, once the writer is gone or dismissed and its paths are. */
    void endIfOver(String detail) {
        if (admission != null && !over && (writerGone || dismissed) && paths.isEmpty()) {
            over = true;
            target.admitted.remove(this);
            target.port.onClosed(admission, detail);
        }
    }
}
