package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.WindowArea;

/** Mutant: every window is filled some pages or rows too early. */
final class ExpectingLess extends PassingTransferEngine {
    private final int less;

    ExpectingLess(TransferEngine engine, int less) {
        super(engine);
        this.less = less;
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        return super.openWindow(from, area, Math.max(1, expectedWeight - less), cookie);
    }
}
