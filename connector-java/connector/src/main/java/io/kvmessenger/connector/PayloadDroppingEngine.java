package io.kvmessenger.connector;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;

/**
 * A fault to test tests with: every immediate arrives, and instead of its pages the engine's page 0 (which no request
 * owns) arrives over and over.
 *
 * <p>Threading as the engine it wraps.
 */
final class PayloadDroppingEngine implements TransferEngine {
    private final TransferEngine engine;

    PayloadDroppingEngine(TransferEngine engine) {
        this.engine = engine;
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        if (request instanceof PagedWrites writes) {
            PageList pages = writes.sourcePages();
            PageList pageZero = new PageList(pages.indices(), pages.from(), pages.count(), 0, pages.offsetBytes());
            return engine.submit(
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
        return engine.submit(peer, request, cookie);
    }

    @Override
    public EngineAddress address() {
        return engine.address();
    }

    @Override
    public Region register(MemorySegment memory, int memfd) {
        return engine.register(memory, memfd);
    }

    @Override
    public Admission admit(String peerName) {
        return engine.admit(peerName);
    }

    @Override
    public void revoke(Admission admission) {
        engine.revoke(admission);
    }

    @Override
    public Peer connect(EngineAddress address, byte[] admissionKey, String peerName) {
        return engine.connect(address, admissionKey, peerName);
    }

    @Override
    public void disconnect(Peer peer) {
        engine.disconnect(peer);
    }

    @Override
    public void allow(Peer peer, RegionDescriptor target, int imm, WindowRanges ranges) {
        engine.allow(peer, target, imm, ranges);
    }

    @Override
    public void disallow(Peer peer, int imm) {
        engine.disallow(peer, imm);
    }

    @Override
    public String refusal() {
        return engine.refusal();
    }

    @Override
    public int send(Peer peer, MemorySegment message) {
        return engine.send(peer, message);
    }

    @Override
    public ImmWindow openWindow(Admission from, Region region, WindowRanges ranges, long expectedWeight, long cookie) {
        return engine.openWindow(from, region, ranges, expectedWeight, cookie);
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return engine.poll(handler, limit);
    }

    @Override
    public TransferCounters counters() {
        return engine.counters();
    }

    @Override
    public void close() {
        engine.close();
    }
}
