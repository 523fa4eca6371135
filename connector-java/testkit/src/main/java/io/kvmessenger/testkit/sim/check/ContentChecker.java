package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.testkit.sim.ContextPool;
import io.kvmessenger.testkit.sim.PageContent;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** When a fetch is reported as arrived, every granted byte of every rank has the content of the prompt's KV. */
final class ContentChecker implements WorldListener {
    /** The pages of one layer of one rank. */
    private record LayerPages(int rankIndex, LayerGeometry layer, PageContent content, MemorySegment bytes) {}

    private final Map<String, List<LayerPages>> memories = new HashMap<>();
    /** By kind of context row. */
    private final Map<String, List<MemorySegment>> contexts = new HashMap<>();

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
        memories.put(process, layers);
        contexts.put(process, bytes.subList(geometry.ranks().size(), bytes.size()));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + fetch.request(), fetch);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        FetchFacts fetch = fetches.get(process + request);
        if (fetch == null || fetch.pageCount() != pageCount) {
            throw new Violation("Content", request + " arrived with " + pageCount + " pages; asked was " + fetch);
        }
        checkAll(fetch);
    }

    @Override
    public void decodeEnded(String process, String request) {
        checkAll(fetches.get(process + request));
    }

    private void checkAll(FetchFacts fetch) {
        checkRows(fetch);
        for (LayerPages layer : memories.get(fetch.process())) {
            List<Integer> pages = fetch.pages().get(layer.layer.groupIndex());
            for (int i = 0; i < pages.size(); i++) {
                checkPage(fetch, layer, pages.get(i), fetch.firstToken() / layer.content.pageTokens() + i);
            }
        }
    }

    private void checkRows(FetchFacts fetch) {
        List<MemorySegment> rows = contexts.get(fetch.process());
        for (int kind = 0; fetch.contextSlot() != ContextSlots.NO_SLOT && kind < rows.size(); kind++) {
            long at = ContextPool.offsetOf(fetch.contextSlot());
            for (int b = 0; b < ContextPool.rowBytes(kind); b++) {
                byte expected = fetch.context().has(kind)
                        ? ContextPool.byteOf(fetch.transferId(), kind, b)
                        : ContextPool.SCRIBBLE;
                if (rows.get(kind).get(ValueLayout.JAVA_BYTE, at + b) != expected) {
                    throw new Violation(
                            "Content",
                            fetch.request() + " was reported arrived and byte " + b + " of its context row of kind "
                                    + kind + " is wrong");
                }
            }
        }
    }

    private static void checkPage(FetchFacts fetch, LayerPages pages, int page, int logicalPage) {
        int pageTokens = pages.content.pageTokens();
        long at = pages.layer.pageOffsetBytes(page);
        for (int b = 0; b < pages.layer.pageBytes(); b++) {
            boolean granted = logicalPage * pageTokens + pages.content.tokenInPage(b) < fetch.promptTokens();
            byte expected = pages.content.of(fetch.transferId(), logicalPage, b);
            if (granted && pages.bytes.get(ValueLayout.JAVA_BYTE, at + b) != expected) {
                throw new Violation(
                        "Content",
                        fetch.request() + " is to be read and " + pages.layer.name() + " of rank " + pages.rankIndex
                                + ", page " + page + ", byte " + b + " is wrong");
            }
        }
    }
}
