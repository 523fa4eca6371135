package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.TransferFault;
import java.util.HashMap;
import java.util.Map;
import java.util.function.LongSupplier;

/**
 * The peers that are connected to and neither disconnected nor reported as lost, each with the worker that writes to it.
 *
 * <p>Messenger's thread; a peer's state is its worker's. It queues no writes.
 */
final class LivePeers {
    private final EngineLimits limits;
    private final DomainGroups domainGroups;
    private final RegionTable regions;
    private final LongSupplier clock;
    private final Map<OutboundPeer, DomainGroup> groupByPeer = new HashMap<>();
    private int lastId;

    LivePeers(EngineLimits limits, DomainGroups domainGroups, RegionTable regions, LongSupplier clock) {
        this.limits = limits;
        this.domainGroups = domainGroups;
        this.regions = regions;
        this.clock = clock;
    }

    int count() {
        return groupByPeer.size();
    }

    /** Which worker's group writes to the peer; null if it is not live. */
    DomainGroup groupOf(OutboundPeer peer) {
        return groupByPeer.get(peer);
    }

    /**
     * Starts to connect.
     *
     * @throws IllegalStateException when too many are live
     */
    OutboundPeer connect(EngineAddress target, byte[] admissionKey, String name) {
        domainGroups.requireRoom(count(), "peers");
        if (admissionKey.length != Admission.KEY_LENGTH_BYTES) {
            throw new IllegalArgumentException("the admission key of " + name + " has " + admissionKey.length
                    + " bytes, expected " + Admission.KEY_LENGTH_BYTES);
        }
        DomainGroup domainGroup = domainGroups.leastLoaded(groupByPeer.values());
        OutboundPeer peer = new OutboundPeer(
                ++lastId,
                name,
                new OutboundPeer.Target(
                        target,
                        admissionKey.clone(),
                        domainGroup.links(),
                        regions.readers(domainGroup.domains()),
                        domainGroup.staging(),
                        domainGroup.loads()),
                limits.requestsPerPeer(),
                new Allowances(regions),
                domainGroup.completions(),
                domainGroup.figures(),
                clock);
        groupByPeer.put(peer, domainGroup);
        domainGroup.worker().execute(() -> domainGroup.worker().add(peer));
        return peer;
    }

    /** Ends a peer, unless it is not live. */
    void disconnect(OutboundPeer peer) {
        DomainGroup domainGroup = groupByPeer.remove(peer);
        if (domainGroup != null) {
            peer.forget();
            domainGroup.worker().execute(() -> {
                peer.disconnect(TransferFault.DISCONNECTED, "disconnected by this engine");
                domainGroup.worker().remove(peer);
            });
        }
    }

    void wake(OutboundPeer peer) {
        DomainGroup domainGroup = groupOf(peer);
        if (domainGroup != null) {
            domainGroup.worker().wake();
        }
    }

    void lose(OutboundPeer peer, String detail) {
        DomainGroup domainGroup = groupOf(peer);
        if (domainGroup != null) {
            domainGroup.worker().execute(() -> peer.onLost(TransferFault.PROTOCOL, detail));
        }
    }
}
