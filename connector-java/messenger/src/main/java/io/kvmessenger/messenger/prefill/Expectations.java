package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Transfers that decoders have queued requests for: as long as the session lives that says so, its grant is on its way
 * however long the queue is. Several requests may be queued for one transfer. Owned by the messenger's thread.
 */
final class Expectations {
    /** In the order of their words, as they are answered: a run is the same again. */
    private final Map<TransferKey, Set<Session>> byTransfer = new HashMap<>();

    /** How many words of each transfer are to come. */
    private final Map<Session, Map<TransferKey, Integer>> bySession = new HashMap<>();
    /** Until when a prompt of it has to be seen, in the order of these deadlines. */
    private final Map<Word, Long> unseenUntilNs = new LinkedHashMap<>();

    private final long grantWaitNs;

    /** A transfer that a session expects. */
    record Word(Session session, TransferKey transfer) {}

    Expectations(long grantWaitNs) {
        this.grantWaitNs = grantWaitNs;
    }

    /** One that a session has no room for is forgotten: its prefill then waits for the usual limit. */
    void add(Session session, TransferKey transfer, long nowNs) {
        Map<TransferKey, Integer> expected = bySession.computeIfAbsent(session, unknown -> new HashMap<>());
        if (expected.containsKey(transfer) || expected.size() < ProtocolLimits.EXPECTED_TRANSFERS_MAX) {
            expected.merge(transfer, 1, Integer::sum);
            byTransfer
                    .computeIfAbsent(transfer, unknown -> new LinkedHashSet<>())
                    .add(session);
            unseenUntilNs.putIfAbsent(new Word(session, transfer), nowNs + grantWaitNs);
        }
    }

    /** The session has granted the transfer, or declined it, for one of its requests. */
    void remove(Session session, TransferKey transfer) {
        Map<TransferKey, Integer> expected = bySession.get(session);
        if (expected != null
                && expected.containsKey(transfer)
                && expected.computeIfPresent(transfer, (key, count) -> count == 1 ? null : count - 1) == null) {
            forget(session, transfer);
        }
    }

    /** The session has ended. Returns what it had expected. */
    Set<TransferKey> drop(Session session) {
        Map<TransferKey, Integer> expected = bySession.remove(session);
        if (expected == null) {
            return Set.of();
        }
        expected.keySet().forEach(transfer -> forget(session, transfer));
        return expected.keySet();
    }

    /** Sessions that expect the transfer. */
    List<Session> of(TransferKey transfer) {
        return List.copyOf(byTransfer.getOrDefault(transfer, Set.of()));
    }

    boolean any(TransferKey transfer) {
        return byTransfer.containsKey(transfer);
    }

    /** Those whose prompt should have been seen by now; each is returned once. */
    List<Word> takeOverdue(long nowNs) {
        List<Word> overdue = unseenUntilNs.entrySet().stream()
                .takeWhile(word -> nowNs - word.getValue() >= 0)
                .map(Map.Entry::getKey)
                .toList();
        overdue.forEach(unseenUntilNs::remove);
        return overdue;
    }

    /** When the next one is overdue, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        return unseenUntilNs.isEmpty()
                ? latestNs
                : latestNs + Math.min(0, unseenUntilNs.values().iterator().next() - latestNs);
    }

    private void forget(Session session, TransferKey transfer) {
        unseenUntilNs.remove(new Word(session, transfer));
        Set<Session> sessions = byTransfer.get(transfer);
        sessions.remove(session);
        if (sessions.isEmpty()) {
            byTransfer.remove(transfer);
        }
    }
}
