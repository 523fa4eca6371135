package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.HostMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/**
 * An engine of 126 layers whose pages hold 32 bytes each, so that a prompt of a million tokens fits a test, above a real
 * messenger. Pages of a prompt lie scattered.
 *
 * <p>Used by the test's thread alone.
 */
final class LongPromptEngine implements AutoCloseable {
    static final int LAYER_COUNT = 126;
    static final int PAGE_TOKENS = 16;
    static final int PAGE_BYTES = 32;

    private static final int LONGS_PER_PAGE = PAGE_BYTES / Long.BYTES;
    /** Pages that belong to no prompt. */
    private static final int SPARE_PAGES = 13;
    /** Prime, and so without a common factor with the number of pages. */
    private static final long SCATTER = 1_000_003;

    private static final int POLL_CAPACITY_BYTES = 1 << 20;

    final MessengerHost host = new MessengerHost();
    final OpenResult opened;
    /** All but those that were awaited. */
    final PolledEvents polled;

    private final int pageCount;
    private final HostMemory memory;
    private final MemorySegment counter;
    private long step;
    private long bumps;

    LongPromptEngine(String role, int promptTokens, Map<String, Object> optionChanges) {
        pageCount = Math.ceilDiv(promptTokens, PAGE_TOKENS) + SPARE_PAGES;
        memory = HostMemory.allocate("long-prompt", LAYER_COUNT * layerBytes());
        Map<String, Object> options = EngineDouble.options(role);
        options.putAll(optionChanges);
        opened = host.open(EngineDouble.encode(EngineDouble.kvRequest(options, geometry(), 0)));
        polled = new PolledEvents(host, opened.handle(), POLL_CAPACITY_BYTES, EngineDouble.AWAIT_LIMIT_NS);
        counter = ForeignMemory.at(opened.layerCounterAddress(), Long.BYTES);
    }

    private long layerBytes() {
        return (long) pageCount * PAGE_BYTES;
    }

    private int page(int position) {
        return (int) (position * SCATTER % pageCount);
    }

    private static long content(long seed, int layer, int position, int i) {
        long mixed = (((seed * 31 + layer) << 20) + position) * LONGS_PER_PAGE + i;
        mixed = (mixed ^ (mixed >>> 29)) * 0x9E3779B97F4A7C15L;
        return (mixed ^ (mixed >>> 32)) | 1;
    }

    // ---- prefiller

    /** Computes the whole prompt, a forward pass for each chunk, and ends the request. */
    void compute(String transfer, long seed, int promptTokens, int chunkTokens) {
        for (int from = 0; from < promptTokens; from += chunkTokens) {
            int to = Math.min(promptTokens, from + chunkTokens);
            submit(Map.of(
                    "do",
                    "step",
                    "step",
                    ++step,
                    "counterStart",
                    bumps,
                    "chunks",
                    List.of(chunk(transfer, promptTokens, from, to))));
            for (int layer = 0; layer < LAYER_COUNT; layer++) {
                for (int k = from / PAGE_TOKENS; k < Math.ceilDiv(to, PAGE_TOKENS); k++) {
                    write(layer, k, seed);
                }
                counter.setAtIndex(ValueLayout.JAVA_LONG, 0, ++bumps);
            }
            submit(Map.of("do", "stepEnded", "step", step, "counterEnd", bumps));
        }
        submit(Map.of("do", "prefillEnded", "request", transfer, "outcome", "finished"));
    }

    private Map<String, Object> chunk(String transfer, int promptTokens, int from, int to) {
        Map<String, Object> chunk = new LinkedHashMap<>();
        chunk.put("request", transfer);
        chunk.put("transfer", transfer);
        chunk.put("promptTokens", promptTokens);
        chunk.put("cachedTokens", 0);
        chunk.put("firstToken", from);
        chunk.put("endToken", to);
        List<Integer> pages = pages(from / PAGE_TOKENS, Math.ceilDiv(to, PAGE_TOKENS));
        chunk.put("groups", List.of(Map.of("firstPage", from / PAGE_TOKENS, "pages", pages)));
        return chunk;
    }

    private void write(int layer, int position, long seed) {
        long at = layer * layerBytes() + (long) page(position) * PAGE_BYTES;
        for (int i = 0; i < LONGS_PER_PAGE; i++) {
            memory.memory().set(ValueLayout.JAVA_LONG, at + (long) i * Long.BYTES, content(seed, layer, position, i));
        }
    }

    // ---- decoder

    void fetch(String transfer, LongPromptEngine prefiller, int promptTokens) {
        Map<String, Object> address =
                Map.of("host", prefiller.opened.controlHost(), "port", prefiller.opened.controlPort());
        List<Integer> pages = pages(0, Math.ceilDiv(promptTokens, PAGE_TOKENS));
        submit(EngineDouble.fetchCommand(transfer, transfer, List.of(address), promptTokens, 0, pages));
    }

    /** Bytes that are not what the prompt, or the lack of one, makes them; every byte of the memory is looked at. */
    long wrongBytes(long seed, int promptTokens) {
        long wrong = 0;
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            for (int position = 0; position < pageCount; position++) {
                boolean granted = position < Math.ceilDiv(promptTokens, PAGE_TOKENS);
                long at = layer * layerBytes() + (long) page(position) * PAGE_BYTES;
                for (int i = 0; i < LONGS_PER_PAGE; i++) {
                    long found = memory.memory().get(ValueLayout.JAVA_LONG, at + (long) i * Long.BYTES);
                    wrong += found == (granted ? content(seed, layer, position, i) : 0) ? 0 : Long.BYTES;
                }
            }
        }
        return wrong;
    }

    // ---- both

    /** Takes the event of this kind that comes for the request; fails after a generous limit. */
    Map<?, ?> await(String kind, String request) {
        return polled.await(kind, request);
    }

    String held() {
        return EngineDouble.decode(host.leakCheck(opened.handle())).toString();
    }

    @Override
    public void close() {
        host.close(opened.handle());
        memory.close();
    }

    private List<Integer> pages(int from, int to) {
        return IntStream.range(from, to).map(this::page).boxed().toList();
    }

    private void submit(Map<String, Object> command) {
        host.submit(opened.handle(), EngineDouble.encode(Map.of("commands", List.of(command))));
    }

    private Map<String, Object> geometry() {
        List<Map<String, Object>> layers = EngineDouble.layers(LAYER_COUNT, layerBytes(), PAGE_BYTES);
        Map<String, Object> kv = Map.of(
                "address",
                memory.memory().address(),
                "lengthBytes",
                memory.memory().byteSize(),
                "memfd",
                memory.memfd());
        Map<String, Object> geometry = new LinkedHashMap<>();
        geometry.put("model", "long@1");
        geometry.put("groups", List.of(EngineDouble.group("bfloat16", 2, PAGE_TOKENS, "HND", 1, pageCount)));
        geometry.put("tpSize", 1);
        geometry.put("ppSize", 1);
        geometry.put("ranks", List.of(Map.of("tpRank", 0, "ppRank", 0, "memories", List.of(kv), "layers", layers)));
        return geometry;
    }
}
