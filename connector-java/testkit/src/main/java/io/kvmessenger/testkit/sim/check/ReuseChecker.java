package io.kvmessenger.testkit.sim.check;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * No page is written by its next owner while the messenger may still read or write it: a prefill's pages from their
 * chunk until they are released or fenced, a fetch's until its end was told.
 */
final class ReuseChecker implements WorldListener {
    private final Map<String, Map<Integer, String>> touchableByProcess = new HashMap<>();

    private Map<Integer, String> touchable(String process) {
        return touchableByProcess.computeIfAbsent(process, p -> new HashMap<>());
    }

    @Override
    public void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {
        pages.forEach(page -> take(process, request, page));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetch.pages().forEach(page -> take(fetch.process(), fetch.request(), page));
    }

    private void take(String process, String request, int page) {
        String before = touchable(process).put(page, request);
        if (before != null) {
            throw new Violation(
                    "Reuse", "page " + page + " of " + process + " is told for " + request + " and for " + before);
        }
    }

    @Override
    public void pagesOverwritten(String process, List<Integer> pages) {
        for (int page : pages) {
            String holder = touchable(process).get(page);
            if (holder != null) {
                throw new Violation(
                        "Reuse",
                        "page " + page + " of " + process + " has a new owner while the messenger may touch it for "
                                + holder);
            }
        }
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        giveUp(process, request);
    }

    @Override
    public void prefillReleased(String process, String request) {
        giveUp(process, request);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        giveUp(process, request);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        giveUp(process, request);
    }

    private void giveUp(String process, String request) {
        touchable(process).values().removeIf(request::equals);
    }
}
