package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;

/** A production engine whose calls are refused, or throw before they have had any effect, as {@link PortFaults} says. */
final class FailingTransferEngine extends PassingTransferEngine {
    private static final long QUEUE_FULL_NS = 2 * Scenario.MILLI;

    private final SimulatedNode node;
    private final FailingPorts failing;

    private FailingTransferEngine(TransferEngine engine, SimulatedNode node, FailingPorts failing) {
        super(engine);
        this.node = node;
        this.failing = failing;
    }

    /** The engine itself where nothing is to fail. */
    static TransferEngine of(TransferEngine engine, SimulatedNode node, FailingPorts failing) {
        return failing.faults().any() ? new FailingTransferEngine(engine, node, failing) : engine;
    }

    @Override
    public Admission admit(String peerName) {
        failing.throwAt("admit", failing.faults().peerThrows());
        return super.admit(peerName);
    }

    @Override
    public Peer connect(EngineAddress address, byte[] admissionKey, String peerName) {
        failing.throwAt("connect", failing.faults().peerThrows());
        return super.connect(address, admissionKey, peerName);
    }

    @Override
    public RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass) {
        failing.throwAt("allow", failing.faults().allowThrows());
        return super.allow(peer, imm, area, trafficClass);
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        failing.throwAt("openWindow", failing.faults().windowThrows());
        return failing.happens("openWindow", failing.faults().slotsTaken())
                ? null
                : super.openWindow(from, area, expectedWeight, cookie);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        failing.throwAt("submit", failing.faults().submitThrows());
        if (failing.happens("queue", failing.faults().queueFull())) {
            failing.later(QUEUE_FULL_NS, node::wake);
            return BACK_PRESSURE;
        }
        return super.submit(peer, request, cookie);
    }
}
