package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import java.util.HashMap;
import java.util.Map;
import java.util.random.RandomGenerator;

/**
 * The admissions that have not ended, each with the worker that serves it and a key drawn for it.
 *
 * <p>Messenger's thread; what an admission lets in is its worker's. It proves no end: an admission is live until its
 * worker has reported it as closed.
 */
final class LiveAdmissions {
    private final DomainGroups domainGroups;
    private final RandomGenerator keys;
    private final Map<Integer, DomainGroup> groupById = new HashMap<>();
    private int lastId;

    LiveAdmissions(DomainGroups domainGroups, RandomGenerator keys) {
        this.domainGroups = domainGroups;
        this.keys = keys;
    }

    int count() {
        return groupById.size();
    }

    /** Which worker's group serves the admission; null if it has ended. */
    DomainGroup groupOf(Admission admission) {
        return groupById.get(admission.id());
    }

    /** @throws IllegalStateException when too many are live */
    Admission admit(String peerName) {
        domainGroups.requireRoom(count(), "admissions");
        byte[] key = new byte[Admission.KEY_LENGTH_BYTES];
        keys.nextBytes(key);
        Admission admission = new Admission(++lastId, peerName, key);
        DomainGroup domainGroup = domainGroups.leastLoaded(groupById.values());
        groupById.put(admission.id(), domainGroup);
        domainGroup.inboundWrites().admit(admission);
        return admission;
    }

    void revoke(Admission admission) {
        DomainGroup domainGroup = groupOf(admission);
        if (domainGroup != null) {
            domainGroup.worker().execute(() -> domainGroup.inboundWrites().revoke(admission, "revoked"));
        }
    }

    void revokeUnused(Admission admission) {
        DomainGroup domainGroup = groupOf(admission);
        if (domainGroup != null) {
            InboundWrites writes = domainGroup.inboundWrites();
            domainGroup.worker().execute(() -> writes.revokeUnused(admission, "no peer has used it"));
        }
    }

    void onClosed(Admission admission) {
        groupById.remove(admission.id());
    }
}
