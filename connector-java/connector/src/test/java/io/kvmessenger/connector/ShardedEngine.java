package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.TransferOptions;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * A messenger and the ranks of a simulated engine that it serves, in a process of its own: computes prompts into the
 * memory of its ranks, fetches into it, and says whether each byte there is what it has to be.
 *
 * <p>Each rank's memory is mapped twice, as that of ranks which hand theirs over is: the engine computes and compares in
 * one mapping, the messenger has the other one.
 *
 * <p>A test talks to it by lines, {@code prefill}, {@code fetch} and {@code sentBytes}; each is answered by a line when
 * it has ended.
 */
final class ShardedEngine implements AutoCloseable {
    private static final long POLL_PERIOD_NS = 100_000;
    private static final int POLL_CAPACITY_BYTES = 1 << 16;

    private final ShardedShape shape;
    private final MessengerHost host = new MessengerHost();
    private final List<HostMemory> memories = new ArrayList<>();
    private final Arena handedOver = Arena.ofShared();
    private final OpenResult opened;
    private final MemorySegment counter;
    private final List<Map<?, ?>> events = new ArrayList<>();
    private long step;
    private long bumps;

    private ShardedEngine(String role, String transport, ShardedShape shape) throws IOException {
        this.shape = shape;
        List<Map<String, Object>> described = new ArrayList<>();
        for (int rank = 0; rank < shape.rankCount(); rank++) {
            HostMemory memory = HostMemory.allocate("rank-" + rank, shape.memoryBytes());
            memories.add(memory);
            described.add(Map.of(
                    "address",
                    handOver(memory).address(),
                    "lengthBytes",
                    memory.memory().byteSize(),
                    "memfd",
                    memory.memfd()));
        }
        Map<String, Object> options = EngineDouble.options(role);
        options.put("transports", List.of(transport));
        if (transport.equals(TransferOptions.VERBS)) {
            // The two ends of one wire, by the names that the devices' tests have for them.
            options.put("verbsDevices", List.of(RdmaDevices.deviceOf(role.equals("decoder") ? "target" : "writer")));
        }
        options.put("pageChecksum", "off");
        options.put("timelines", "off");
        opened = host.open(EngineDouble.encode(EngineDouble.kvRequest(options, shape.geometry(described), 0)));
        counter = ForeignMemory.at(opened.layerCounterAddress(), Long.BYTES);
    }

    /** A second mapping of a rank's memory, as its lead makes it. */
    private MemorySegment handOver(HostMemory memory) throws IOException {
        Path descriptor = Path.of("/proc/self/fd", Integer.toString(memory.memfd()));
        try (FileChannel file = FileChannel.open(descriptor, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return file.map(FileChannel.MapMode.READ_WRITE, 0, memory.memory().byteSize(), handedOver);
        }
    }

    /** One engine after the other: a line {@code open} makes one, {@code close} ends it. */
    public static void main(String[] none) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        // Its parent's death closes the pipe, and with it this process.
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            serve(List.of(line.split(" ", -1)), input);
        }
    }

    /** Until the line {@code close}. Words: open, role, transport, then those of the shape. */
    private static void serve(List<String> words, BufferedReader input) throws IOException {
        ShardedShape shape = ShardedShape.parse(words.subList(3, words.size()));
        try (ShardedEngine engine = new ShardedEngine(words.get(1), words.get(2), shape)) {
            System.out.println(engine.opened.controlHost() + ":" + engine.opened.controlPort());
            for (String line = input.readLine(); line != null && !line.equals("close"); line = input.readLine()) {
                System.out.println(engine.answer(List.of(line.split(" ", -1))));
            }
        }
        System.out.println("closed");
    }

    @Override
    public void close() {
        host.close(opened.handle());
        handedOver.close();
        memories.forEach(HostMemory::close);
    }

    private String answer(List<String> words) {
        if (words.getFirst().equals("sentBytes")) {
            Map<?, ?> stats = EngineDouble.decode(host.stats(opened.handle()));
            return ((Map<?, ?>) stats.get("counters"))
                    .get("kv_messenger_transport_sent_bytes")
                    .toString();
        }
        String transfer = words.get(1);
        int promptTokens = Integer.parseInt(words.get(2));
        List<Integer> pages =
                Stream.of(words.get(3).split(",", -1)).map(Integer::valueOf).toList();
        return switch (words.getFirst()) {
            case "prefill" -> prefill(transfer, promptTokens, pages);
            case "fetch" ->
                fetch(transfer, promptTokens, pages, List.of(words.get(4).split(",", -1)));
            default -> throw new IllegalArgumentException(words.toString());
        };
    }

    // ---- prefiller

    private String prefill(String transfer, int promptTokens, List<Integer> pages) {
        Map<String, Object> chunk = new LinkedHashMap<>();
        chunk.put("request", transfer);
        chunk.put("transfer", transfer);
        chunk.put("promptTokens", promptTokens);
        chunk.put("cachedTokens", 0);
        chunk.put("firstToken", 0);
        chunk.put("endToken", promptTokens);
        chunk.put("groups", List.of(Map.of("firstPage", 0, "pages", pages)));
        submit(Map.of("do", "step", "step", ++step, "counterStart", bumps, "chunks", List.of(chunk)));
        for (int stage = shape.ppRank(0); stage <= shape.ppRank(shape.rankCount() - 1); stage++) {
            for (int layer = 0; layer < shape.layersHeld(); layer++) {
                compute(stage, layer, transfer, promptTokens, pages);
                if (stage == shape.ppRank(0)) {
                    counter.setAtIndex(ValueLayout.JAVA_LONG, 0, ++bumps);
                }
            }
        }
        submit(Map.of("do", "stepEnded", "step", step, "counterEnd", bumps));
        submit(Map.of("do", "prefillEnded", "request", transfer, "outcome", "finished"));
        return await(transfer).get("event").toString();
    }

    private void compute(int stage, int layer, String transfer, int promptTokens, List<Integer> pages) {
        for (int rank = 0; rank < shape.rankCount(); rank++) {
            if (shape.ppRank(rank) == stage) {
                MemorySegment memory = memories.get(rank).memory();
                forEachByte(rank, layer, transfer, pages, (offset, token, expected) -> {
                    if (token < promptTokens) {
                        memory.set(ValueLayout.JAVA_BYTE, offset, expected);
                    }
                });
            }
        }
    }

    // ---- decoder

    private String fetch(String transfer, int promptTokens, List<Integer> pages, List<String> prefillers) {
        List<Map<String, Object>> named = prefillers.stream()
                .map(address -> address.split(":", -1))
                .map(parts -> Map.<String, Object>of("host", parts[0], "port", Integer.parseInt(parts[1])))
                .toList();
        submit(EngineDouble.fetchCommand(transfer, transfer, named, promptTokens, 0, pages));
        Map<?, ?> end = await(transfer);
        return end.get("event").equals("arrived") ? compare(transfer, promptTokens, pages) : end.toString();
    }

    /** Compares every byte of every rank's memory: what the prompt's pages hold, and that nothing else was touched. */
    private String compare(String transfer, int promptTokens, List<Integer> pages) {
        long equal = 0;
        for (int rank = 0; rank < shape.rankCount(); rank++) {
            MemorySegment memory = memories.get(rank).memory();
            long[] equalAndWrong = {0, 0};
            for (int layer = 0; layer < shape.layersHeld(); layer++) {
                forEachByte(rank, layer, transfer, pages, (offset, token, expected) -> {
                    byte found = memory.get(ValueLayout.JAVA_BYTE, offset);
                    equalAndWrong[token < promptTokens && found != expected ? 1 : 0]++;
                    memory.set(ValueLayout.JAVA_BYTE, offset, (byte) 0);
                });
            }
            long touched = memory.mismatch(MemorySegment.ofArray(new byte[(int) memory.byteSize()]));
            if (equalAndWrong[1] > 0 || touched >= 0) {
                return "rank " + rank + " has " + equalAndWrong[1] + " wrong bytes and one outside its pages at "
                        + touched;
            }
            equal += equalAndWrong[0];
        }
        return "equal " + equal;
    }

    // ---- both

    /** What a byte of a prompt's pages has to be. */
    private interface ByteVisitor {
        void visit(long offset, int token, byte expected);
    }

    private void forEachByte(int rank, int layer, String transfer, List<Integer> pages, ByteVisitor visitor) {
        for (int i = 0; i < pages.size(); i++) {
            long page = shape.pageOffset(layer, pages.get(i));
            for (int token = 0; token < ShardedShape.PAGE_TOKENS; token++) {
                int position = i * ShardedShape.PAGE_TOKENS + token;
                for (int head = 0; head < shape.headsHeld(); head++) {
                    for (int b = 0; b < ShardedShape.HEAD_BYTES; b++) {
                        visitor.visit(
                                page + shape.byteInPage(head, token, b),
                                position,
                                ShardedShape.content(
                                        transfer, shape.firstLayer(rank) + layer, position, shape.head(rank, head), b));
                    }
                }
            }
        }
    }

    private void submit(Map<String, Object> command) {
        host.submit(opened.handle(), EngineDouble.encode(Map.of("commands", List.of(command))));
    }

    /** The event that ends the request; fails after a generous limit. */
    private Map<?, ?> await(String request) {
        long limitNs = System.nanoTime() + EngineDouble.AWAIT_LIMIT_NS;
        while (System.nanoTime() - limitNs < 0) {
            byte[] json = host.poll(opened.handle(), POLL_CAPACITY_BYTES);
            if (json.length > 0) {
                for (Object event : (List<?>) EngineDouble.decode(json).get("events")) {
                    events.add((Map<?, ?>) event);
                }
            }
            for (Map<?, ?> event : events) {
                if (request.equals(event.get("request"))
                        && List.of("arrived", "failed", "released").contains(event.get("event"))) {
                    return event;
                }
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        return Map.of("event", "nothing", "events", events);
    }
}
