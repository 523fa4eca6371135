package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;

/** Mutant: every write goes out twice, as it would if a second grant like the first were served; one completion is told. */
final class ServingTwice extends PassingTransferEngine {
    /** Cookies of the second serving; the messenger's own are small. */
    private static final long SECOND = 1L << 40;

    ServingTwice(TransferEngine engine) {
        super(engine);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        int result = super.submit(peer, request, cookie);
        if (result == ACCEPTED) {
            int ignored = super.submit(peer, request, SECOND + cookie);
            assert ignored <= ACCEPTED;
        }
        return result;
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return super.poll(
                new PassingHandler(handler) {
                    @Override
                    public void onWriteCompleted(long cookie) {
                        if (cookie < SECOND) {
                            super.onWriteCompleted(cookie);
                        }
                    }

                    @Override
                    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
                        if (cookie < SECOND) {
                            super.onWriteFailed(cookie, fault, detail);
                        }
                    }
                },
                limit);
    }
}
