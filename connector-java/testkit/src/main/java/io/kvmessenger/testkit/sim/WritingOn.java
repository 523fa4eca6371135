package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.HashMap;
import java.util.Map;

/** Mutant: an allowance outlives its end, and the last write is then sent once more; its completion is not reported. */
final class WritingOn extends PassingTransferEngine {
    private final Map<RemoteWindow, PagedWrites> lastByWindow = new HashMap<>();

    WritingOn(TransferEngine engine) {
        super(engine);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        int result = super.submit(peer, request, cookie);
        if (result == ACCEPTED && request instanceof PagedWrites writes) {
            lastByWindow.put(writes.window(), writes);
        }
        return result;
    }

    @Override
    public void disallow(Peer peer, RemoteWindow window) {
        PagedWrites last = lastByWindow.remove(window);
        if (last != null) {
            int ignored = super.submit(peer, last, FirstCompletionsOnly.EXTRA_COOKIE);
            assert ignored <= ACCEPTED;
        }
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return super.poll(new FirstCompletionsOnly(handler), limit);
    }
}
