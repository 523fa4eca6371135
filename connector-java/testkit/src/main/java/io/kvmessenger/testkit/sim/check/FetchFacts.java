package io.kvmessenger.testkit.sim.check;

import java.util.List;

/** What a decoder's engine asked for. A value. */
public record FetchFacts(
        String process, String request, String transferId, int promptTokens, int firstToken, List<Integer> pages) {
    public FetchFacts {
        pages = List.copyOf(pages);
    }
}
