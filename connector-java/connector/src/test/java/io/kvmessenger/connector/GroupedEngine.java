package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.HostMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/**
 * An engine whose layers are in several KV groups, in turn, above a real messenger. Each group has pages of its own, and the
 * same position of a prompt is another page in each.
 *
 * <p>Used by the test's thread alone.
 */
final class GroupedEngine implements AutoCloseable {
    /**
     * What the layers of a group have alike.
     *
     * @param windowTokens how many of the last tokens they need; 0 = all
     */
    record Group(String layout, int heads, int pageTokens, int pageCount, int windowTokens) {
        Group(String layout, int heads, int pageTokens, int pageCount) {
            this(layout, heads, pageTokens, pageCount, 0);
        }

        /** Where the first page begins that is needed of tokens {@code [fromToken, promptTokens)}. */
        int firstToken(int fromToken, int promptTokens) {
            int needed = windowTokens == 0 ? fromToken : Math.max(fromToken, promptTokens - windowTokens);
            return needed - needed % pageTokens;
        }

        int pageBytes() {
            return heads * pageTokens * ROW_BYTES;
        }

        int page(int position, int groupIndex) {
            return (position * 7 + 3 + 5 * groupIndex) % pageCount;
        }

        /** Where a byte of a token's row of a head lies in its page. */
        int byteInPage(int head, int tokenInPage) {
            int row = layout.equals("HND") ? head * pageTokens + tokenInPage : tokenInPage * heads + head;
            return row * ROW_BYTES;
        }
    }

    private static final int LAYER_COUNT = 5;
    private static final int ROW_BYTES = 8;
    private static final int POLL_CAPACITY_BYTES = 1 << 16;

    final MessengerHost host = new MessengerHost();
    final OpenResult opened;

    private final List<Group> groups;
    private final HostMemory memory;
    private final MemorySegment counter;
    private final PolledEvents polled;
    private long bumps;

    GroupedEngine(String role, List<Group> groups, Map<String, Object> optionChanges) {
        this.groups = groups;
        this.memory = HostMemory.allocate("grouped", offset(LAYER_COUNT));
        Map<String, Object> options = EngineDouble.options(role);
        options.putAll(optionChanges);
        opened = host.open(EngineDouble.encode(EngineDouble.kvRequest(options, geometry(), 0)));
        polled = new PolledEvents(host, opened.handle(), POLL_CAPACITY_BYTES, EngineDouble.AWAIT_LIMIT_NS);
        counter = ForeignMemory.at(opened.layerCounterAddress(), Long.BYTES);
    }

    private int groupIndex(int layer) {
        return layer % groups.size();
    }

    private Group group(int layer) {
        return groups.get(groupIndex(layer));
    }

    private long offset(int layer) {
        return IntStream.range(0, layer)
                .mapToLong(before ->
                        (long) group(before).pageCount() * group(before).pageBytes())
                .sum();
    }

    /** Where a token's row of a head lies in the memory. */
    private long row(int layer, int token, int head) {
        Group group = group(layer);
        int page = group.page(token / group.pageTokens(), groupIndex(layer));
        return offset(layer) + (long) page * group.pageBytes() + group.byteInPage(head, token % group.pageTokens());
    }

    private static long content(String transfer, int layer, int token, int head) {
        long mixed = (transfer.hashCode() * 31L + layer) * 1_000_003L + token * 257L + head;
        return (mixed * 0x9E3779B97F4A7C15L) | 1;
    }

    private List<Integer> pages(int groupIndex, int fromToken, int toToken) {
        Group group = groups.get(groupIndex);
        return IntStream.range(fromToken / group.pageTokens(), Math.ceilDiv(toToken, group.pageTokens()))
                .map(position -> group.page(position, groupIndex))
                .boxed()
                .toList();
    }

    /** Of a whole prompt; positions before the window have all the same page, which holds nothing. */
    private List<Integer> heldPages(int groupIndex, int promptTokens) {
        Group group = groups.get(groupIndex);
        int firstToken = group.firstToken(0, promptTokens);
        List<Integer> pages = new ArrayList<>(Collections.nCopies(firstToken / group.pageTokens(), 0));
        pages.addAll(pages(groupIndex, firstToken, promptTokens));
        return pages;
    }

    // ---- prefiller

    /** One forward pass over the whole prompt. */
    void compute(String transfer, int promptTokens) {
        Map<String, Object> chunk = new LinkedHashMap<>();
        chunk.put("request", transfer);
        chunk.put("transfer", transfer);
        chunk.put("promptTokens", promptTokens);
        chunk.put("cachedTokens", 0);
        chunk.put("firstToken", 0);
        chunk.put("endToken", promptTokens);
        chunk.put(
                "groups",
                IntStream.range(0, groups.size())
                        .mapToObj(group -> Map.of("firstPage", 0, "pages", heldPages(group, promptTokens)))
                        .toList());
        submit(Map.of("do", "step", "step", 1, "counterStart", bumps, "chunks", List.of(chunk)));
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            for (int token = group(layer).firstToken(0, promptTokens); token < promptTokens; token++) {
                for (int head = 0; head < group(layer).heads(); head++) {
                    memory.memory()
                            .set(ValueLayout.JAVA_LONG, row(layer, token, head), content(transfer, layer, token, head));
                }
            }
            counter.setAtIndex(ValueLayout.JAVA_LONG, 0, ++bumps);
        }
        submit(Map.of("do", "stepEnded", "step", 1, "counterEnd", bumps));
        submit(Map.of("do", "prefillEnded", "request", transfer, "outcome", "finished"));
    }

    // ---- decoder

    void fetch(String transfer, GroupedEngine prefiller, int promptTokens, int firstToken) {
        Map<String, Object> address =
                Map.of("host", prefiller.opened.controlHost(), "port", prefiller.opened.controlPort());
        Map<String, Object> command = new LinkedHashMap<>(
                EngineDouble.fetchCommand(transfer, transfer, List.of(address), promptTokens, firstToken, List.of()));
        command.put(
                "groups",
                IntStream.range(0, groups.size())
                        .mapToObj(group -> Map.of(
                                "pages",
                                pages(group, groups.get(group).firstToken(firstToken, promptTokens), promptTokens)))
                        .toList());
        submit(command);
    }

    /** Rows that are not what the prompt, or the lack of one, makes them; every row of the memory is looked at. */
    long wrongRows(String transfer, int promptTokens, int firstToken) {
        MemorySegment expected =
                MemorySegment.ofArray(new long[(int) memory.memory().byteSize() / Long.BYTES]);
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            for (int token = group(layer).firstToken(firstToken, promptTokens); token < promptTokens; token++) {
                for (int head = 0; head < group(layer).heads(); head++) {
                    expected.set(ValueLayout.JAVA_LONG, row(layer, token, head), content(transfer, layer, token, head));
                }
            }
        }
        return IntStream.range(0, (int) expected.byteSize() / ROW_BYTES)
                .filter(i -> expected.getAtIndex(ValueLayout.JAVA_LONG, i)
                        != memory.memory().getAtIndex(ValueLayout.JAVA_LONG, i))
                .count();
    }

    // ---- both

    /** Takes the event of this kind that comes for the request; fails after a generous limit. */
    Map<?, ?> await(String kind, String request) {
        return polled.await(kind, request);
    }

    private void submit(Map<String, Object> command) {
        host.submit(opened.handle(), EngineDouble.encode(Map.of("commands", List.of(command))));
    }

    private Map<String, Object> geometry() {
        List<Map<String, Object>> layers = new ArrayList<>();
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            Map<String, Object> described = new LinkedHashMap<>();
            described.put("name", "layer." + layer);
            described.put("groupIndex", groupIndex(layer));
            described.put("memoryIndex", 0);
            described.put("offsetBytes", offset(layer));
            described.put("pageStrideBytes", group(layer).pageBytes());
            described.put("pageBytes", group(layer).pageBytes());
            layers.add(described);
        }
        List<Map<String, Object>> described =
                groups.stream().map(GroupedEngine::described).toList();
        Map<String, Object> kv = Map.of(
                "address",
                memory.memory().address(),
                "lengthBytes",
                memory.memory().byteSize(),
                "memfd",
                memory.memfd());
        Map<String, Object> rank = Map.of("tpRank", 0, "ppRank", 0, "memories", List.of(kv), "layers", layers);
        return Map.of("model", "grouped@1", "tpSize", 1, "ppSize", 1, "groups", described, "ranks", List.of(rank));
    }

    private static Map<String, Object> described(Group group) {
        Map<String, Object> described = new LinkedHashMap<>(
                EngineDouble.group("float32", 4, group.pageTokens(), group.layout(), group.heads(), group.pageCount()));
        described.put("kind", group.windowTokens() == 0 ? "full" : "window");
        described.put("windowTokens", group.windowTokens());
        return described;
    }

    @Override
    public void close() {
        host.close(opened.handle());
        memory.close();
    }
}
