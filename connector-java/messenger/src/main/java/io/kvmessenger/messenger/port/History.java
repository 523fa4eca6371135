package io.kvmessenger.messenger.port;

import io.kvmessenger.messenger.port.MessengerState.FailureRow;
import io.kvmessenger.messenger.port.MessengerState.Span;
import io.kvmessenger.messenger.port.MessengerState.TransferRow;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/** The most recent transfers, and the most recent fetches and prefills that failed. Owned by the messenger's thread. */
public final class History {
    public static final int FAILURES_KEPT_MAX = 50;

    public static final int TRANSFERS_KEPT_MAX = 20;

    /** Longest failure sentence that is kept; longer ones are cut. */
    private static final int SENTENCE_LENGTH_MAX = 512;

    private record Failure(
            String side, String request, TransferKey transfer, long endedNs, CountedReason reason, String sentence) {}

    /** @param row as it was when the transfer ended */
    private record Transfer(TransferRow row, long endedNs) {}

    /** Newest first. */
    private final ArrayDeque<Failure> failures = new ArrayDeque<>();

    /** Newest first. */
    private final ArrayDeque<Transfer> transfers = new ArrayDeque<>();

    public void arrived(FetchTimeline of) {
        long begunNs = of.askedNs() - of.waits().ns();
        long answeredNs = begunNs + of.waits().answerNs();
        List<Span> spans = new ArrayList<>();
        add(spans, "question", begunNs, begunNs, answeredNs);
        add(spans, "pages", begunNs, answeredNs, of.askedNs());
        add(spans, "grant", begunNs, of.askedNs(), of.grantedNs());
        add(spans, "KV", begunNs, of.grantedNs(), of.readyNs());
        add("decoder", of.request(), of.transferId(), of.bytes(), spans, of.readyNs());
    }

    /** Records a prefill that has been sent to one decoder. */
    public void sent(PrefillTimeline of) {
        long forwardStartNs = of.chunks().isEmpty() ? 0 : of.chunks().getFirst().forwardStartNs();
        long begunNs = forwardStartNs == 0 ? of.grantedNs() : Math.min(of.grantedNs(), forwardStartNs);
        List<Span> spans = new ArrayList<>();
        add(spans, "grant waits", begunNs, of.grantedNs(), forwardStartNs);
        add(spans, "forward passes", begunNs, forwardStartNs, of.sums().forwardEndNs());
        add(spans, "writes", begunNs, of.sums().firstSubmittedNs(), of.lastLeftNs());
        add("prefiller", of.request(), of.transferId(), of.bytesSent(), spans, of.lastLeftNs());
    }

    public void fetchFailed(String request, TransferKey transfer, long nowNs, CountedReason reason, String sentence) {
        add(new Failure("decoder", request, transfer, nowNs, reason, sentence));
    }

    public void prefillFailed(String request, TransferKey transfer, long nowNs, CountedReason reason, String sentence) {
        add(new Failure("prefiller", request, transfer, nowNs, reason, sentence));
    }

    /** Adds a span; one that was not reached or took no time is left out. */
    private static void add(List<Span> spans, String what, long begunNs, long fromNs, long untilNs) {
        if (fromNs != 0 && untilNs > fromNs) {
            spans.add(new Span(what, fromNs - begunNs, untilNs - begunNs));
        }
    }

    private void add(String side, String request, String transferId, long lengthBytes, List<Span> spans, long endedNs) {
        if (transfers.size() == TRANSFERS_KEPT_MAX) {
            transfers.removeLast();
        }
        transfers.addFirst(new Transfer(new TransferRow(side, request, transferId, lengthBytes, 0, spans), endedNs));
    }

    private void add(Failure failure) {
        if (failures.size() == FAILURES_KEPT_MAX) {
            failures.removeLast();
        }
        failures.addFirst(failure);
    }

    /** Transfers that were completed, newest first. */
    public List<TransferRow> transfers(long nowNs) {
        List<TransferRow> rows = new ArrayList<>();
        for (Transfer transfer : transfers) {
            rows.add(transfer.row.ended(nowNs - transfer.endedNs));
        }
        return rows;
    }

    /** Transfers that failed, newest first. */
    public List<FailureRow> failures(long nowNs) {
        List<FailureRow> rows = new ArrayList<>();
        for (Failure failure : failures) {
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
