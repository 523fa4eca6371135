package io.kvmessenger.connector;

import io.kvmessenger.transfer.PassingTransferEngine;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;

/**
 * A fault to test tests with: every immediate arrives, and instead of its pages the engine's page 0 (which no request
 * owns) arrives over and over.
 *
 * <p>Threading as the engine it wraps.
 */
final class PayloadDroppingEngine extends PassingTransferEngine {
    PayloadDroppingEngine(TransferEngine engine) {
        super(engine);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        if (request instanceof PagedWrites writes) {
            PageList pages = writes.sourcePages();
            PageList pageZero = new PageList(
                    pages.indices(),
                    pages.from(),
                    pages.count(),
                    0,
                    pages.offsetBytes(),
                    pages.partsPerPage(),
                    pages.partStrideBytes());
            return super.submit(
                    peer,
                    new PagedWrites(
                            writes.source(),
                            pageZero,
                            writes.target(),
                            writes.targetPages(),
                            writes.pageBytes(),
                            writes.imm()),
                    cookie);
        }
        return super.submit(peer, request, cookie);
    }
}
