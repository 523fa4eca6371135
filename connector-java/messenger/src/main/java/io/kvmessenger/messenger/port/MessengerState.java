package io.kvmessenger.messenger.port;

import java.util.List;

/**
 * What a messenger holds and waits for at one moment, in words for people. A value; each list has the oldest first and is cut
 * to a number of rows, the counts are whole.
 *
 * @param transfers the last ones that ended with their KV, newest first
 * @param failures the last ones, newest first
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
     * @param role what the peer is to this side: {@code prefiller} or {@code decoder}
     * @param unheardNs since its last frame
     */
    public record PeerRow(String name, String role, String state, long unheardNs) {}

    /**
     * A decoder's request.
     *
     * @param ageNs since the engine's fetch
     * @param leftNs of its time; below 0 when that is over
     * @param waitsFor a sentence without its subject
     */
    public record FetchRow(
            String request, String transfer, int pageCount, long ageNs, long leftNs, List<String> waitsFor) {}

    /** A prefiller's request. {@code waitsFor}: one entry for each decoder that asks, or what it waits for without one. */
    public record PrefillRow(
            String request, String transfer, int promptTokens, int computedTokens, List<String> waitsFor) {}

    /** A decoder's pages that wait for their prompt. */
    public record GrantRow(String transfer, String decoder, int promptTokens, long ageNs) {}

    /**
     * A fetch that has arrived, or a prefill that has been sent to one decoder.
     *
     * @param side this one's: {@code prefiller} or {@code decoder}
     * @param agoNs since it ended
     */
    public record TransferRow(
            String side, String request, String transfer, long lengthBytes, long agoNs, List<Span> spans) {
        public TransferRow {
            spans = List.copyOf(spans);
        }

        /** The same, of which {@code agoNs} have passed since its end. */
        TransferRow ended(long agoNs) {
            return new TransferRow(side, request, transfer, lengthBytes, agoNs, spans);
        }
    }

    /** A part of a transfer; times count from its first moment on this side. */
    public record Span(String what, long fromNs, long untilNs) {}

    /**
     * A fetch or prefill that ended without its KV.
     *
     * @param side this one's: {@code prefiller} or {@code decoder}
     * @param agoNs since it ended
     * @param reason the label it was counted under
     */
    public record FailureRow(
            String side, String request, String transfer, long agoNs, String reason, String sentence) {}
}
