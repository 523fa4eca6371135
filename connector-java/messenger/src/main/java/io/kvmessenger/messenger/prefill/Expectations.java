package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.TransferKey;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Transfers that decoders have queued requests for. As long as the session that announced it lasts, a grant is on its
 * way, however long the queue is. Several requests may be queued for one transfer. Owned by the messenger's thread.
 */
final class Expectations {
    /** Sessions in the order of their announcements, which is the order of the replies: runs are reproducible. */
    private final Map<TransferKey, Set<DecoderSession>> byTransfer = new HashMap<>();

    /** Number of outstanding answers for each transfer. */
    private final Map<DecoderSession, Map<TransferKey, Integer>> bySession = new HashMap<>();
    /** Deadline by which the prompt must have been seen, ordered by deadline. */
    private final Map<Announcement, Long> unseenUntilNs = new LinkedHashMap<>();

    private final long unheardLimitNs;
    private final int eachMax;

    /** A transfer that a session has announced. */
    record Announcement(DecoderSession session, TransferKey transfer) {}

    /** @param eachMax limit on the transfers of one session */
    Expectations(long unheardLimitNs, int eachMax) {
        this.unheardLimitNs = unheardLimitNs;
        this.eachMax = eachMax;
    }

    /** Records an announcement. One beyond the session's limit is dropped: its prefill then waits the usual limit. */
    void add(DecoderSession session, TransferKey transfer, long nowNs) {
        Map<TransferKey, Integer> expected = bySession.computeIfAbsent(session, unknown -> new HashMap<>());
        if (expected.containsKey(transfer) || expected.size() < eachMax) {
            expected.merge(transfer, 1, Integer::sum);
            byTransfer
                    .computeIfAbsent(transfer, unknown -> new LinkedHashSet<>())
                    .add(session);
            unseenUntilNs.putIfAbsent(new Announcement(session, transfer), nowNs + unheardLimitNs);
        }
    }

    /** The session has granted or declined the transfer for one of its requests. */
    void remove(DecoderSession session, TransferKey transfer) {
        Map<TransferKey, Integer> expected = bySession.get(session);
        if (expected != null
                && expected.containsKey(transfer)
                && expected.computeIfPresent(transfer, (key, count) -> count == 1 ? null : count - 1) == null) {
            forget(session, transfer);
        }
    }

    /** The session has ended. Returns the transfers that it expected. */
    Set<TransferKey> drop(DecoderSession session) {
        Map<TransferKey, Integer> expected = bySession.remove(session);
        if (expected == null) {
            return Set.of();
        }
        expected.keySet().forEach(transfer -> forget(session, transfer));
        return expected.keySet();
    }

    /** Sessions that expect the transfer. */
    List<DecoderSession> of(TransferKey transfer) {
        return List.copyOf(byTransfer.getOrDefault(transfer, Set.of()));
    }

    boolean any(TransferKey transfer) {
        return byTransfer.containsKey(transfer);
    }

    /** Announcements whose prompt should have been seen by now; each is returned once. */
    List<Announcement> takeOverdue(long nowNs) {
        List<Announcement> overdue = unseenUntilNs.entrySet().stream()
                .takeWhile(announcement -> nowNs - announcement.getValue() >= 0)
                .map(Map.Entry::getKey)
                .toList();
        overdue.forEach(unseenUntilNs::remove);
        return overdue;
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        return unseenUntilNs.isEmpty()
                ? latestNs
                : latestNs + Math.min(0, unseenUntilNs.values().iterator().next() - latestNs);
    }

    private void forget(DecoderSession session, TransferKey transfer) {
        unseenUntilNs.remove(new Announcement(session, transfer));
        Set<DecoderSession> sessions = byTransfer.get(transfer);
        sessions.remove(session);
        if (sessions.isEmpty()) {
            byTransfer.remove(transfer);
        }
    }
}
