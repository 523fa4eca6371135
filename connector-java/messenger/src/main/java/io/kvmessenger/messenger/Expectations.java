package io.kvmessenger.messenger;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Transfers that decoders have queued requests for: as long as the session lives that says so, its grant is on its way
 * however long the queue is. Owned by the messenger's thread.
 */
final class Expectations {
    private final Map<String, Set<Session>> byTransfer = new HashMap<>();
    private final Map<Session, Set<String>> bySession = new HashMap<>();

    /** One that a session has no room for is forgotten: its prefill then waits for the usual limit. */
    void add(Session session, String transferId) {
        Set<String> expected = bySession.computeIfAbsent(session, unknown -> new HashSet<>());
        if (expected.size() < ProtocolLimits.EXPECTED_TRANSFERS_MAX && expected.add(transferId)) {
            byTransfer.computeIfAbsent(transferId, unknown -> new HashSet<>()).add(session);
        }
    }

    /** The session has granted the transfer, or declined it. */
    void remove(Session session, String transferId) {
        Set<String> expected = bySession.get(session);
        if (expected != null && expected.remove(transferId)) {
            forget(session, transferId);
        }
    }

    /** The session has ended. Returns what it had expected. */
    Set<String> drop(Session session) {
        Set<String> expected = bySession.remove(session);
        if (expected == null) {
            return Set.of();
        }
        expected.forEach(transferId -> forget(session, transferId));
        return expected;
    }

    /** Sessions that expect the transfer. */
    Set<Session> of(String transferId) {
        return Set.copyOf(byTransfer.getOrDefault(transferId, Set.of()));
    }

    boolean any(String transferId) {
        return byTransfer.containsKey(transferId);
    }

    private void forget(Session session, String transferId) {
        Set<Session> sessions = byTransfer.get(transferId);
        sessions.remove(session);
        if (sessions.isEmpty()) {
            byTransfer.remove(transferId);
        }
    }
}
