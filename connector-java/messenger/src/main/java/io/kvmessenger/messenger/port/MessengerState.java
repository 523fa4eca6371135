package io.kvmessenger.messenger.port;

import java.util.List;

/**
 * What a messenger holds and waits for at one moment, readable for an operator. A value. Each list is oldest first and
 * limited in length; the counts cover everything.
 *
 * @param transfers the most recent ones that ended with their KV, newest first
 * @param failures the most recent ones, newest first
 */
public record MessengerState(
        List<PeerRow> peers,
        int fetchCount,
        List<FetchRow> fetches,
        int prefillCount,
        List<PrefillRow> prefills,
        int grantCount,
        List<GrantRow> grants,
        List<TransferRow> transfers,
        List<FailureRow> failures) {
    /**
     * A connected peer, or one that is being dialled.
     *
     * @param role of the peer: {@code prefiller} or {@code decoder}
     * @param unheardNs time since its last frame
     */
    public record PeerRow(String name, String role, String state, long unheardNs) {}

    /**
     * A decoder's fetch.
     *
     * @param ageNs time since the engine asked for it
     * @param leftNs time until its limit; negative after it
     * @param waitsFor each a predicate, without its subject
     */
    public record FetchRow(
            String request, String transfer, int pageCount, long ageNs, long leftNs, List<String> waitsFor) {}

    /** A prefiller's request. {@code waitsFor} has one entry for each decoder that asks, or one if none does. */
    public record PrefillRow(
            String request, String transfer, int promptTokens, int computedTokens, List<String> waitsFor) {}

    /** A decoder's grant that waits for its prompt. */
    public record GrantRow(String transfer, String decoder, int promptTokens, long ageNs) {}

    /**
     * A fetch that has arrived, or a prefill that has been sent to one decoder.
     *
     * @param side of this messenger: {@code prefiller} or {@code decoder}
     * @param agoNs time since it ended
     */
    public record TransferRow(
            String side, String request, String transfer, long lengthBytes, long agoNs, List<Span> spans) {
        public TransferRow {
            spans = List.copyOf(spans);
        }

        /** A copy with a new {@code agoNs}. */
        TransferRow ended(long agoNs) {
            return new TransferRow(side, request, transfer, lengthBytes, agoNs, spans);
        }
    }

    /** A phase of a transfer; times are relative to the transfer's first event on this side. */
    public record Span(String what, long fromNs, long untilNs) {}

    /**
     * A fetch or prefill that ended without its KV.
     *
     * @param side of this messenger: {@code prefiller} or {@code decoder}
     * @param agoNs time since it ended
     * @param reason the label that it was counted under
     */
    public record FailureRow(
            String side, String request, String transfer, long agoNs, String reason, String sentence) {}
}
