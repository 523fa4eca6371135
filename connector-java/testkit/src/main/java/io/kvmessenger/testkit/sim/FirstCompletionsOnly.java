package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine.PassingHandler;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.TransferFault;

/** For mutants that submit additional writes: forwards only the completions of the messenger's own writes. */
final class FirstCompletionsOnly extends PassingHandler {
    /** Cookies from here on belong to a mutant; the messenger's own are small. */
    static final long EXTRA_COOKIE = 1L << 40;

    FirstCompletionsOnly(CompletionHandler handler) {
        super(handler);
    }

    @Override
    public void onWriteCompleted(long cookie) {
        if (cookie < EXTRA_COOKIE) {
            super.onWriteCompleted(cookie);
        }
    }

    @Override
    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
        if (cookie < EXTRA_COOKIE) {
            super.onWriteFailed(cookie, fault, detail);
        }
    }
}
