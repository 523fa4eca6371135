package io.kvmessenger.messenger.port;

import io.kvmessenger.messenger.port.MessengerState.FailureRow;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/** The last fetches and prefills that ended without their KV. Owned by the messenger's thread. */
public final class RecentFailures {
    /** How many are kept. */
    public static final int KEPT_MAX = 50;

    /** Longest sentence that is kept of one. */
    private static final int SENTENCE_LENGTH_MAX = 512;

    private record Failure(
            String side, String request, TransferKey transfer, long endedNs, CountedReason reason, String sentence) {}

    /** Newest first. */
    private final ArrayDeque<Failure> kept = new ArrayDeque<>();

    public void ofFetch(String request, TransferKey transfer, long nowNs, CountedReason reason, String sentence) {
        add(new Failure("decoder", request, transfer, nowNs, reason, sentence));
    }

    public void ofPrefill(String request, TransferKey transfer, long nowNs, CountedReason reason, String sentence) {
        add(new Failure("prefiller", request, transfer, nowNs, reason, sentence));
    }

    private void add(Failure failure) {
        if (kept.size() == KEPT_MAX) {
            kept.removeLast();
        }
        kept.addFirst(failure);
    }

    /** All that are kept, newest first. */
    public List<FailureRow> rows(long nowNs) {
        List<FailureRow> rows = new ArrayList<>();
        for (Failure failure : kept) {
            rows.add(new FailureRow(
                    failure.side,
                    failure.request,
                    failure.transfer.id(),
                    nowNs - failure.endedNs,
                    failure.reason.label(),
                    cut(failure.sentence)));
        }
        return rows;
    }

    private static String cut(String sentence) {
        return sentence.length() <= SENTENCE_LENGTH_MAX ? sentence : sentence.substring(0, SENTENCE_LENGTH_MAX) + " …";
    }
}
