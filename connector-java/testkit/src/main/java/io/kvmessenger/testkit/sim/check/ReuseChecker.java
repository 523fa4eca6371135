package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.testkit.sim.BlockPages;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * No page is written by its next owner while the messenger may still read or write it: a prefill's pages from their
 * chunk until they are released or fenced, a fetch's until its end was reported.
 */
final class ReuseChecker implements WorldListener {
    private final Map<String, Map<Integer, Set<String>>> touchableByProcess = new HashMap<>();

    private final Map<String, BlockPages> blocksByProcess = new HashMap<>();

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        blocksByProcess.put(process, new BlockPages(geometry));
    }

    private Map<Integer, Set<String>> touchable(String process) {
        return touchableByProcess.computeIfAbsent(process, p -> new HashMap<>());
    }

    @Override
    public void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {
        pages.forEach(page -> take(process, request, page));
    }

    @Override
    public void prefillPagesShared(String process, String request, int promptTokens, List<Integer> pages) {
        pages.forEach(page -> holders(process, page).add(request));
    }

    private Set<String> holders(String process, int page) {
        return touchable(process).computeIfAbsent(page, p -> new HashSet<>());
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        BlockPages blocks = blocksByProcess.get(fetch.process());
        fetch.pages().getFirst().stream() // each block has a page of each group
                .map(page -> blocks.blockOf(0, page))
                .distinct()
                .forEach(block -> take(fetch.process(), fetch.request(), block));
    }

    private void take(String process, String request, int page) {
        Set<String> before = holders(process, page);
        if (!before.isEmpty()) {
            throw new Violation(
                    "Reuse", "page " + page + " of " + process + " is told for " + request + " and for " + before);
        }
        before.add(request);
    }

    @Override
    public void pagesOverwritten(String process, List<Integer> pages) {
        for (int page : pages) {
            Set<String> holders = holders(process, page);
            if (!holders.isEmpty()) {
                throw new Violation(
                        "Reuse",
                        "page " + page + " of " + process + " has a new owner while the messenger may touch it for "
                                + holders);
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
        touchable(process).values().forEach(holders -> holders.remove(request));
    }
}
