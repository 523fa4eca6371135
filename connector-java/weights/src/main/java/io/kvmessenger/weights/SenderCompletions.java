package io.kvmessenger.weights;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/** Passes completions of a sender's transfer engine on; no peer writes to a sender. Owned by the messenger's thread. */
record SenderCompletions(WeightSender sender) implements CompletionHandler {
    @Override
    public void onWriteCompleted(long cookie) {
        sender.onWriteCompleted(cookie);
    }

    @Override
    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
        sender.onWriteFailed(cookie, fault, detail);
    }

    @Override
    public void onPeerReady(Peer peer) {
        sender.onPeerReady(peer);
    }

    @Override
    public void onPeerLost(Peer peer, TransferFault fault, String detail) {
        sender.onPeerLost(peer, fault, detail);
    }

    @Override
    public void onWindowFilled(long cookie) {}

    @Override
    public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {}

    @Override
    public void onAdmissionClosed(Admission admission, String detail) {}

    @Override
    public void onWriteRefused(Admission admission, String detail) {}

    @Override
    public void onMessage(Admission from, MemorySegment message) {}
}
