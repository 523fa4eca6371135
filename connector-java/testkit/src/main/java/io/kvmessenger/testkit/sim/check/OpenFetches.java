package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.wire.Grant;
import java.util.LinkedHashMap;
import java.util.Map;

/** The fetches that have not ended; finds the one that a grant is for by its pages, as ids may be reused. */
final class OpenFetches {
    private final Map<String, Map<String, FetchFacts>> byProcess = new LinkedHashMap<>();

    void add(FetchFacts fetch) {
        of(fetch.process()).put(fetch.request(), fetch);
    }

    void remove(String process, String request) {
        of(process).remove(request);
    }

    private Map<String, FetchFacts> of(String process) {
        return byProcess.computeIfAbsent(process, p -> new LinkedHashMap<>());
    }

    /** The fetch that a grant's pages, or its context slot, belong to. */
    FetchFacts grantedBy(String process, Grant grant) {
        return of(process).values().stream()
                .filter(fetch -> grants(grant, fetch))
                .findFirst()
                .orElseThrow(() -> new Violation(
                        "Grant",
                        process + " grants pages for transfer " + grant.getTransferId() + " that no fetch has"));
    }

    private static boolean grants(Grant grant, FetchFacts fetch) {
        return grant.getContextSlot() > 0
                ? fetch.contextSlot() == grant.getContextSlot() - 1
                : fetch.pages().getFirst().contains(grant.getGroups(0).getPageIndices(0));
    }
}
