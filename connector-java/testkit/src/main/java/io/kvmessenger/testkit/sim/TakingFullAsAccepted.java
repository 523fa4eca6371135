package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;

/** The mutant: back pressure is not noticed, so the write is neither posted nor submitted again. */
final class TakingFullAsAccepted extends PassingTransferEngine {
    TakingFullAsAccepted(TransferEngine engine) {
        super(engine);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        int result = super.submit(peer, request, cookie);
        return result == BACK_PRESSURE ? ACCEPTED : result;
    }
}
