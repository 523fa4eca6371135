package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.WindowArea;

/** Mutant: a window reports the weight that was posted for it as arrived. */
final class CountingPosted extends PassingTransferEngine {
    private final SimulatedTransport transport;

    CountingPosted(TransferEngine engine, SimulatedTransport transport) {
        super(engine);
        this.transport = transport;
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        ImmWindow window = super.openWindow(from, area, expectedWeight, cookie);
        if (window != null) {
            transport.postedWeights().put(window.imm(), 0L);
        }
        return window == null ? null : new PostedWindow(window);
    }

    private final class PostedWindow implements ImmWindow {
        private final ImmWindow window;

        PostedWindow(ImmWindow window) {
            this.window = window;
        }

        @Override
        public int imm() {
            return window.imm();
        }

        @Override
        public long arrivedWeight() {
            return transport.postedWeights().get(window.imm());
        }

        @Override
        public long expectedWeight() {
            return window.expectedWeight();
        }

        @Override
        public void close(boolean drained) {
            window.close(drained);
        }
    }
}
