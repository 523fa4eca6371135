package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.List;

/** Mutant: context rows are read from the first slot. */
final class SendingFirstSlot extends PassingTransferEngine {
    private final List<Region> context;

    SendingFirstSlot(TransferEngine engine, List<Region> context) {
        super(engine);
        this.context = context;
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        if (request instanceof PagedWrites writes && context.contains(writes.source())) {
            PageList from = writes.sourcePages();
            return super.submit(
                    peer,
                    new PagedWrites(
                            writes.source(),
                            new PageList(
                                    new int[from.count()], 0, from.count(), from.strideBytes(), from.offsetBytes()),
                            writes.target(),
                            writes.targetPages(),
                            writes.pageBytes(),
                            writes.window(),
                            writes.weight()),
                    cookie);
        }
        return super.submit(peer, request, cookie);
    }
}
