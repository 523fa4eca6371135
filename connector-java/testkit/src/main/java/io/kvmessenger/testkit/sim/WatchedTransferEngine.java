package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.testkit.sim.check.WorldListener.FabricHoldings;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** A production engine whose resources are counted from outside, and whose refusals are reported. */
final class WatchedTransferEngine extends PassingTransferEngine {
    private final String process;
    private final WorldListener listener;
    private final Map<Peer, Set<RemoteWindow>> allowances = new HashMap<>();
    private final Set<Integer> admissions = new HashSet<>();

    WatchedTransferEngine(TransferEngine engine, String process, WorldListener listener) {
        super(engine);
        this.process = process;
        this.listener = listener;
    }

    @Override
    public Admission admit(String peerName) {
        Admission admission = super.admit(peerName);
        admissions.add(admission.id());
        listener.admitted(process, peerName, admission.id());
        return admission;
    }

    @Override
    public Peer connect(EngineAddress address, byte[] admissionKey, String peerName) {
        Peer peer = super.connect(address, admissionKey, peerName);
        allowances.put(peer, new HashSet<>());
        return peer;
    }

    @Override
    public void disconnect(Peer peer) {
        super.disconnect(peer);
        allowances.remove(peer);
    }

    @Override
    public RemoteWindow allow(Peer peer, int imm, WindowArea area, TrafficClass trafficClass) {
        RemoteWindow window = super.allow(peer, imm, area, trafficClass);
        allowances.computeIfPresent(peer, (p, windows) -> {
            windows.add(window);
            return windows;
        });
        return window;
    }

    @Override
    public void disallow(Peer peer, RemoteWindow window) {
        super.disallow(peer, window);
        allowances.getOrDefault(peer, Set.of()).remove(window);
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        int result = super.submit(peer, request, cookie);
        if (result == REFUSED) {
            listener.writeRefused(process, refusal());
        }
        return result;
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return super.poll(
                new PassingHandler(handler) {
                    @Override
                    public void onPeerLost(Peer peer, TransferFault fault, String detail) {
                        allowances.remove(peer);
                        super.onPeerLost(peer, fault, detail);
                    }

                    @Override
                    public void onAdmissionClosed(Admission admission, String detail) {
                        admissions.remove(admission.id());
                        listener.admissionClosed(process, admission.id());
                        super.onAdmissionClosed(admission, detail);
                    }
                },
                limit);
    }

    FabricHoldings holdings(int sessions) {
        TransferCounters counters = counters();
        int allowed = allowances.values().stream().mapToInt(Set::size).sum();
        return new FabricHoldings(
                counters.windowsOpen(),
                allowed,
                counters.requestsInFlight(),
                admissions.size(),
                allowances.size(),
                sessions);
    }
}
