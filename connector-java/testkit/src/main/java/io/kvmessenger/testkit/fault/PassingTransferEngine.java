package io.kvmessenger.testkit.fault;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.ReadWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Forwards everything to another engine, for faults that change one thing. Threading as the wrapped engine; it checks
 * and counts nothing itself.
 */
public abstract class PassingTransferEngine implements TransferEngine {
    private final TransferEngine engine;

    protected PassingTransferEngine(TransferEngine engine) {
        this.engine = engine;
    }

    @Override
    public EngineAddress address() {
        return engine.address();
    }

    @Override
    public List<String> notes() {
        return engine.notes();
    }

    @Override
    public List<String> unavailable() {
        return engine.unavailable();
    }

    @Override
    public Region register(Memory memory) {
        return engine.register(memory);
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
    public void revokeUnused(Admission admission) {
        engine.revokeUnused(admission);
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
    public RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass) {
        return engine.allow(peer, imm, area, trafficClass);
    }

    @Override
    public void disallow(Peer peer, RemoteWindow window) {
        engine.disallow(peer, window);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        return engine.submit(peer, request, cookie);
    }

    @Override
    public PeerGroup group(String name, List<Peer> members) {
        return engine.group(name, members);
    }

    @Override
    public int submit(PeerGroup group, GroupRequest request, long cookie) {
        return engine.submit(group, request, cookie);
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
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        return engine.openWindow(from, area, expectedWeight, cookie);
    }

    @Override
    public ReadWindow openForReading(Peer reader, WindowArea area, long cookie) {
        return engine.openForReading(reader, area, cookie);
    }

    @Override
    public int read(Admission owner, ReadRequest request, long cookie) {
        return engine.read(owner, request, cookie);
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return engine.poll(handler, limit);
    }

    @Override
    public void await(long limitNs) {
        engine.await(limitNs);
    }

    @Override
    public void wake() {
        engine.wake();
    }

    @Override
    public TransferCounters counters() {
        return engine.counters();
    }

    @Override
    public void close() {
        engine.close();
    }

    /** Forwards every completion. */
    public abstract static class PassingHandler implements CompletionHandler {
        private final CompletionHandler handler;

        protected PassingHandler(CompletionHandler handler) {
            this.handler = handler;
        }

        @Override
        public void onWriteCompleted(long cookie) {
            handler.onWriteCompleted(cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            handler.onWriteFailed(cookie, fault, detail);
        }

        @Override
        public void onMemberFailed(long cookie, Peer member, TransferFault fault, String detail) {
            handler.onMemberFailed(cookie, member, fault, detail);
        }

        @Override
        public void onWindowFilled(long cookie) {
            handler.onWindowFilled(cookie);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            handler.onWindowOvershot(cookie, arrivedWeight, expectedWeight);
        }

        @Override
        public void onReadCompleted(long cookie) {
            handler.onReadCompleted(cookie);
        }

        @Override
        public void onReadFailed(long cookie, TransferFault fault, String detail) {
            handler.onReadFailed(cookie, fault, detail);
        }

        @Override
        public void onReadWindowClosed(long cookie) {
            handler.onReadWindowClosed(cookie);
        }

        @Override
        public void onPeerReady(Peer peer) {
            handler.onPeerReady(peer);
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            handler.onPeerLost(peer, fault, detail);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            handler.onAdmissionClosed(admission, detail);
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            handler.onWriteRefused(admission, detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {
            handler.onMessage(from, message);
        }
    }
}
