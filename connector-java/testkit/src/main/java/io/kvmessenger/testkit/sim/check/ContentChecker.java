package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.testkit.sim.PageContent;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HashMap;
import java.util.Map;

/** A fetch reported arrived holds, in every granted byte, what the prompt's KV is there. */
final class ContentChecker implements WorldListener {
    private record Memory(PageMap map, MemorySegment bytes) {}

    private final Map<String, Memory> memories = new HashMap<>();
    private final Map<String, FetchFacts> fetches = new HashMap<>();

    @Override
    public void processStarted(String process, KvGeometry geometry, MemorySegment memory) {
        memories.put(process, new Memory(new PageMap(geometry), memory));
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
        for (LayerGeometry layer : memory.map.layers()) {
            for (int i = 0; i < pageCount; i++) {
                checkPage(fetch, memory, layer, i);
            }
        }
    }

    private static void checkPage(FetchFacts fetch, Memory memory, LayerGeometry layer, int index) {
        int pageTokens = memory.map.pageTokens();
        int logicalPage = fetch.firstToken() / pageTokens + index;
        long at = layer.pageOffsetBytes(fetch.pages().get(index));
        for (int b = 0; b < layer.pageBytes(); b++) {
            boolean granted = logicalPage * pageTokens + b % pageTokens < fetch.promptTokens();
            byte expected = PageContent.of(fetch.transferId(), layer.name(), logicalPage, b);
            if (granted && memory.bytes.get(ValueLayout.JAVA_BYTE, at + b) != expected) {
                throw new Violation(
                        "Content",
                        fetch.request() + " was reported arrived and " + layer.name() + ", page "
                                + fetch.pages().get(index) + ", byte " + b + " is wrong");
            }
        }
    }
}
