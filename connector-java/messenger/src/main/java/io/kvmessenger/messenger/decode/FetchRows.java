package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.MessengerState.FetchRow;
import java.util.List;
import java.util.stream.Stream;

/** Describes for an operator what each fetch waits for. Pure functions, on the messenger's thread. */
final class FetchRows {
    private FetchRows() {}

    static List<FetchRow> of(List<Fetch> fetches, int rowsMax, long nowNs) {
        return fetches.stream()
                .limit(rowsMax)
                .map(fetch -> new FetchRow(
                        fetch.ask.request(),
                        fetch.ask.transferId(),
                        fetch.ask.pageCount(),
                        nowNs - fetch.askedNs,
                        fetch.deadlineNs - nowNs,
                        waitsFor(fetch)))
                .toList();
    }

    private static List<String> waitsFor(Fetch fetch) {
        List<String> ofSources = fetch.sources.stream()
                .map(source -> source.session.peerName() + ": " + waitsFor(source))
                .toList();
        if (!fetch.failing()) {
            return fetch.filled() ? List.of("page checksums") : ofSources;
        }
        return Stream.concat(Stream.of("fails: " + fetch.failureSentence), ofSources.stream())
                .toList();
    }

    private static String waitsFor(FetchSource source) {
        return switch (source.state()) {
            case WAITING -> source.session.ready() ? "an imm slot" : "the connection";
            case GRANTED ->
                source.grant.knowsOwed()
                        ? "KV, " + source.grant.arrivedWeight() + " of " + source.grant.owedWeight()
                                + " pieces are here"
                        : "which of the pages it has, " + source.grant.arrivedWeight() + " pieces are here";
            case CANCELLING -> "the confirmation of the cancellation";
            case DRAINING ->
                "writes under way, " + source.grant.arrivedWeight() + " of " + source.grant.postedWeight + " are here";
            case AWAITING_PROOF ->
                source.fetch.failing()
                        ? "proof that nothing can write any more"
                        : "writes under way, " + source.grant.arrivedWeight() + " of " + source.grant.owedWeight()
                                + " are here; its session has ended";
            case FILLED -> "nothing, all of it is here";
            case DRAINED -> "nothing, it writes no more";
        };
    }
}
