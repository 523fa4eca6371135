package io.kvmessenger.testkit.fault;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.HashSet;
import java.util.Set;

/**
 * A fault for testing tests: every immediate arrives, but instead of its pages the engine's page 0 (which belongs to no
 * request) is sent repeatedly. Context rows are sent unchanged: an engine that waits for a value in one of them would
 * not continue, and its answers could not be compared.
 *
 * <p>Threading as the wrapped engine.
 */
final class PayloadDroppingEngine extends PassingTransferEngine {
    private final Set<Long> contextAddresses;
    private final Set<Region> context = new HashSet<>();

    PayloadDroppingEngine(TransferEngine engine, Set<Long> contextAddresses) {
        super(engine);
        this.contextAddresses = contextAddresses;
    }

    @Override
    public Region register(Memory memory) {
        Region region = super.register(memory);
        if (contextAddresses.contains(memory.address())) {
            context.add(region);
        }
        return region;
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        if (request instanceof PagedWrites writes && !context.contains(writes.source())) {
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
                            writes.window(),
                            writes.weight()),
                    cookie);
        }
        return super.submit(peer, request, cookie);
    }
}
