package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;

/** Mutant: every write is sent twice, as if a second, identical grant were served; one completion is reported. */
final class ServingTwice extends PassingTransferEngine {
    ServingTwice(TransferEngine engine) {
        super(engine);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        int result = super.submit(peer, request, cookie);
        if (result == ACCEPTED) {
            int ignored = super.submit(peer, request, FirstCompletionsOnly.EXTRA_COOKIE + cookie);
            assert ignored <= ACCEPTED;
        }
        return result;
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return super.poll(new FirstCompletionsOnly(handler), limit);
    }
}
