package io.kvmessenger.weights;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/** Passes completions of a host's transfer engine on; a host writes to no peer. Owned by the messenger's thread. */
record ReceiverCompletions(WeightReceiver receiver) implements CompletionHandler {
    @Override
    public void onWindowFilled(long cookie) {
        receiver.onWindowFilled(cookie);
    }

    @Override
    public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
        receiver.onWindowOvershot(cookie);
    }

    @Override
    public void onAdmissionClosed(Admission admission, String detail) {
        receiver.onAdmissionClosed(admission, detail);
    }

    /** Its data path is closed already, and the writer's session ends with it. */
    @Override
    public void onWriteRefused(Admission admission, String detail) {}

    @Override
    public void onWriteCompleted(long cookie) {
        throw new AssertionError("a host of weights writes nothing, and write " + cookie + " has completed");
    }

    @Override
    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
        throw new AssertionError("a host of weights writes nothing, and write " + cookie + " has failed: " + detail);
    }

    @Override
    public void onPeerReady(Peer peer) {}

    @Override
    public void onPeerLost(Peer peer, TransferFault fault, String detail) {}

    @Override
    public void onMessage(Admission from, MemorySegment message) {}
}
