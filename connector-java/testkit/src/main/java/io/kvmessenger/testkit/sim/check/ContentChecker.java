package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.testkit.sim.PageContent;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A fetch reported arrived holds, in every granted byte of every rank, what the prompt's KV is there. */
final class ContentChecker implements WorldListener {
    /** The pages of one layer of one rank. */
    private record LayerPages(int rankIndex, LayerGeometry layer, PageContent content, MemorySegment bytes) {}

    private record Memory(int pageTokens, List<LayerPages> layers) {}

    private final Map<String, Memory> memories = new HashMap<>();
    private final Map<String, FetchFacts> fetches = new HashMap<>();

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> bytes) {
        List<LayerPages> layers = new ArrayList<>();
        for (int rank = 0; rank < geometry.ranks().size(); rank++) {
            List<LayerGeometry> ofRank = geometry.ranks().get(rank).layers();
            for (int i = 0; i < ofRank.size(); i++) {
                layers.add(new LayerPages(rank, ofRank.get(i), new PageContent(geometry, rank, i), bytes.get(rank)));
            }
        }
        memories.put(process, new Memory(geometry.groups().getFirst().pageTokens(), layers));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + fetch.request(), fetch);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        FetchFacts fetch = fetches.get(process + request);
        if (fetch == null || fetch.pages().size() != pageCount) {
            throw new Violation("Content", request + " arrived with " + pageCount + " pages; asked was " + fetch);
        }
        Memory memory = memories.get(process);
        for (LayerPages layer : memory.layers) {
            for (int i = 0; i < pageCount; i++) {
                checkPage(fetch, memory.pageTokens, layer, i);
            }
        }
    }

    private static void checkPage(FetchFacts fetch, int pageTokens, LayerPages pages, int index) {
        int logicalPage = fetch.firstToken() / pageTokens + index;
        long at = pages.layer.pageOffsetBytes(fetch.pages().get(index));
        for (int b = 0; b < pages.layer.pageBytes(); b++) {
            boolean granted = logicalPage * pageTokens + pages.content.tokenInPage(b) < fetch.promptTokens();
            byte expected = pages.content.of(fetch.transferId(), logicalPage, b);
            if (granted && pages.bytes.get(ValueLayout.JAVA_BYTE, at + b) != expected) {
                throw new Violation(
                        "Content",
                        fetch.request() + " was reported arrived and " + pages.layer.name() + " of rank "
                                + pages.rankIndex + ", page " + fetch.pages().get(index) + ", byte " + b + " is wrong");
            }
        }
    }
}
