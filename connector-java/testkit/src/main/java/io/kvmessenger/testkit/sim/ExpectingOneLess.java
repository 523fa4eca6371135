package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.WindowArea;

/** Mutant: every window is full one page too early. */
final class ExpectingOneLess extends PassingTransferEngine {
    ExpectingOneLess(TransferEngine engine) {
        super(engine);
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        return super.openWindow(from, area, Math.max(1, expectedWeight - 1), cookie);
    }
}
