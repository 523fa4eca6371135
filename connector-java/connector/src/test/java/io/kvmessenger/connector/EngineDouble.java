package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.HostMemory;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntPredicate;
import java.util.function.Predicate;

/** An engine's side of the boundary for tests: KV memory, commands in, events out. Drives a real messenger by JSON. */
final class EngineDouble implements AutoCloseable {
    static final int PAGE_TOKENS = 16;
    static final int PAGE_COUNT = 64;
    static final int LAYER_COUNT = 3;
    static final int PAGE_BYTES = 4096;
    private static final long LAYER_BYTES = (long) PAGE_COUNT * PAGE_BYTES;
    private static final int POLL_CAPACITY_BYTES = 1 << 16;
    private static final long POLL_PERIOD_NS = 50_000;
    /** So long that a machine with much other work to do does not reach it. */
    static final long AWAIT_LIMIT_NS = 600_000_000_000L;
    /** Of limits that a test is not about: a busy machine outlives shorter ones. */
    static final int HOUR_MILLIS = 3_600_000;

    final MessengerHost host = new MessengerHost();
    final OpenResult opened;
    final MemorySegment memory;
    /** The memory, if peers on this host are to map it; else null. */
    private final HostMemory shared;

    private final List<Map<String, Object>> events = new ArrayList<>();
    private final Arena arena = Arena.ofShared();
    private final MemorySegment counter;
    private final java.util.Set<String> seen = new java.util.HashSet<>();
    private final Map<String, Integer> pagesReported = new java.util.HashMap<>();
    private long bumps;

    EngineDouble(String role, Map<String, Object> optionChanges, Map<String, Object> geometryChanges) {
        this(role, optionChanges, geometryChanges, 0);
    }

    EngineDouble(
            String role, Map<String, Object> optionChanges, Map<String, Object> geometryChanges, int layerCounterLag) {
        Map<String, Object> options = options(role);
        options.putAll(optionChanges);
        long lengthBytes = LAYER_BYTES * LAYER_COUNT;
        shared = options.get("transports").equals(List.of("shm")) ? HostMemory.allocate("double", lengthBytes) : null;
        memory = shared == null ? arena.allocate(lengthBytes, 4096) : shared.memory();
        Map<String, Object> geometry = geometry();
        geometry.putAll(geometryChanges);
        opened = host.open(encode(kvRequest(options, geometry, layerCounterLag)));
        counter = ForeignMemory.at(opened.layerCounterAddress(), Long.BYTES);
    }

    /** A request to open a messenger of a KV cache. */
    static Map<String, Object> kvRequest(
            Map<String, Object> options, Map<String, Object> geometry, int layerCounterLag) {
        return Map.of(
                "options",
                options,
                "subject",
                Map.of("kind", "kv_cache", "geometry", geometry, "layerCounterLag", layerCounterLag));
    }

    static EngineDouble of(String role) {
        return new EngineDouble(role, Map.of(), Map.of());
    }

    void submit(Map<String, Object> command) {
        host.submit(opened.handle(), encode(Map.of("commands", List.of(command))));
    }

    /** One forward pass over a chunk: fills its pages layer by layer and bumps the counter after each. */
    void compute(
            long step,
            String request,
            String transfer,
            int promptTokens,
            int from,
            int to,
            List<Integer> newPages,
            List<Integer> allPages) {
        beginStep(step, request, transfer, promptTokens, from, to, newPages);
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            for (int k = from / PAGE_TOKENS; k < Math.ceilDiv(to, PAGE_TOKENS); k++) {
                fill(layer, allPages.get(k), content(transfer, layer, k));
            }
            bump();
        }
        endStep(step);
    }

    /** The forward pass is queued to where the counter stands. */
    void endStep(long step) {
        submit(Map.of("do", "stepEnded", "step", step, "counterEnd", bumps));
    }

    /** Says that the next layer of the pass is complete. */
    void bump() {
        counter.setAtIndex(ValueLayout.JAVA_LONG, 0, ++bumps);
    }

    /** Tells the messenger that a forward pass begins; nothing is computed. */
    void beginStep(
            long step, String request, String transfer, int promptTokens, int from, int to, List<Integer> newPages) {
        Map<String, Object> chunk = new LinkedHashMap<>();
        chunk.put("request", request);
        chunk.put("transfer", transfer);
        chunk.put("promptTokens", promptTokens);
        chunk.put("cachedTokens", seen.add(request) ? from : 0); // a first chunk that starts later has a cached prefix
        chunk.put("firstToken", from);
        chunk.put("endToken", to);
        int firstPage = pagesReported.merge(request, newPages.size(), Integer::sum) - newPages.size();
        chunk.put("groups", List.of(Map.of("firstPage", firstPage, "pages", newPages)));
        submit(Map.of("do", "step", "step", step, "counterStart", bumps, "chunks", List.of(chunk)));
    }

    void fetch(
            String request,
            String transfer,
            OpenResult prefiller,
            int promptTokens,
            int firstToken,
            List<Integer> pages) {
        Map<String, Object> address = Map.of(
                "host", prefiller.controlHost(), "port", prefiller.controlPort(), "engineId", prefiller.engineId());
        submit(fetchCommand(request, transfer, List.of(address), promptTokens, firstToken, pages));
    }

    /** The command as it crosses the boundary. */
    static Map<String, Object> fetchCommand(
            String request,
            String transfer,
            List<Map<String, Object>> prefillers,
            int promptTokens,
            int firstToken,
            List<Integer> pages) {
        return Map.of(
                "do",
                "fetch",
                "request",
                request,
                "transfer",
                transfer,
                "prefillers",
                prefillers,
                "promptTokens",
                promptTokens,
                "firstToken",
                firstToken,
                "groups",
                List.of(Map.of("pages", pages)),
                "limitMillis",
                0);
    }

    /** To a prefiller's messenger on loopback. */
    void decline(String transfer, int port) {
        submit(Map.of(
                "do",
                "decline",
                "transfer",
                transfer,
                "prefillers",
                List.of(Map.of("host", "127.0.0.1", "port", port))));
    }

    static byte content(String transfer, int layer, int pageOfRequest) {
        return (byte) (1 + Math.floorMod(transfer.hashCode() * 31 + layer * 7 + pageOfRequest, 250));
    }

    void fill(int layer, int page, byte value) {
        page(layer, page).fill(value);
    }

    /** Puts a transfer's content into its pages without any forward pass. */
    void fillPages(String transfer, List<Integer> pages) {
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            for (int k = 0; k < pages.size(); k++) {
                fill(layer, pages.get(k), content(transfer, layer, k));
            }
        }
    }

    boolean holds(int layer, int page, byte value) {
        MemorySegment bytes = page(layer, page);
        for (long i = 0; i < PAGE_BYTES; i++) {
            if (bytes.get(ValueLayout.JAVA_BYTE, i) != value) {
                return false;
            }
        }
        return true;
    }

    /** Polls until an event of this kind for the request has come, and takes it; fails after a generous limit. */
    Map<String, Object> await(String kind, String request) {
        return await(
                kind + " for " + request,
                event -> kind.equals(event.get("event")) && request.equals(event.get("request")));
    }

    /** Waits for the end of a fetch, whatever it is, and takes it. */
    Map<String, Object> awaitEnd(String request) {
        return await(
                "end of " + request,
                event -> request.equals(event.get("request"))
                        && ("arrived".equals(event.get("event")) || "failed".equals(event.get("event"))));
    }

    /** Waits for an event of this kind, and takes it. Returns its request. */
    String awaitAny(String kind) {
        return (String) await(kind, event -> kind.equals(event.get("event"))).get("request");
    }

    /** Waits for a line of the messenger's log, and takes it. */
    void awaitLog(String words) {
        await(
                "log line with " + words,
                event -> String.valueOf(event.get("message")).contains(words));
    }

    private Map<String, Object> await(String what, Predicate<Map<String, Object>> wanted) {
        long limitNs = System.nanoTime() + AWAIT_LIMIT_NS;
        while (System.nanoTime() < limitNs) {
            Map<String, Object> event = take(wanted);
            if (event != null) {
                return event;
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        throw new AssertionError("no " + what + " came; events: " + events());
    }

    /** What has been polled and not been taken. Any thread. */
    synchronized List<Map<String, Object>> events() {
        poll();
        return List.copyOf(events);
    }

    private synchronized Map<String, Object> take(Predicate<Map<String, Object>> wanted) {
        poll();
        for (Map<String, Object> event : events) {
            if (wanted.test(event)) {
                events.remove(event);
                return event;
            }
        }
        return null;
    }

    /** Waits until a gauge says this; fails after a generous limit. */
    void awaitGauge(String name, int value) {
        awaitFigure("gauges", name, seen -> seen == value);
    }

    /** Waits until a counter has come to this or beyond; fails after a generous limit. */
    void awaitCounter(String name, int total) {
        awaitFigure("counters", name, seen -> seen >= total);
    }

    private void awaitFigure(String kind, String name, IntPredicate wanted) {
        long limitNs = System.nanoTime() + AWAIT_LIMIT_NS;
        Object seen = null;
        while (System.nanoTime() < limitNs) {
            seen = ((Map<?, ?>) decode(host.stats(opened.handle())).get(kind)).get(name);
            if (seen instanceof Number number && wanted.test(number.intValue())) {
                return;
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
        throw new AssertionError(name + " is " + seen + ", which is not what was waited for");
    }

    /** Waits until nothing is held any more; fails after a generous limit. */
    void awaitClean() {
        awaitClean(host, opened);
    }

    /** Waits until a messenger holds nothing. */
    static void awaitClean(MessengerHost host, OpenResult opened) {
        long limitNs = System.nanoTime() + AWAIT_LIMIT_NS;
        for (Map<String, Object> check = leakCheck(host, opened);
                !Boolean.TRUE.equals(check.get("clean"));
                check = leakCheck(host, opened)) {
            if (System.nanoTime() > limitNs) {
                throw new AssertionError(check);
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
        }
    }

    /** Adds a subject's own events; bugs are logged as errors, and are none of them. */
    static void pollInto(Collection<Map<?, ?>> events, MessengerHost host, OpenResult opened) {
        byte[] json = host.poll(opened.handle(), POLL_CAPACITY_BYTES);
        if (json.length == 0) {
            return;
        }
        for (Object event : (List<?>) decode(json).get("events")) {
            Map<?, ?> fields = (Map<?, ?>) event;
            if (!"log".equals(fields.get("event"))) {
                events.add(fields);
            } else if ("error".equals(fields.get("level"))) {
                throw new AssertionError(fields.get("message"));
            }
        }
    }

    boolean clean() {
        return (Boolean) leakCheck(host, opened).get("clean");
    }

    String held() {
        return leakCheck(host, opened).toString();
    }

    /** Asks again where a messenger's thread has had no core for longer than an engine would wait for its answer. */
    static Map<String, Object> leakCheck(MessengerHost host, OpenResult opened) {
        while (true) {
            try {
                return decode(host.leakCheck(opened.handle()));
            } catch (IllegalStateException late) {
                assertThat(late).hasMessageContaining("the messenger's answer did not end within");
            }
        }
    }

    @Override
    public void close() {
        close("is shutting down");
    }

    /** @param why for peers */
    void close(String why) {
        host.close(opened.handle(), encode(Map.of("why", why)));
        if (shared != null) {
            shared.close();
        }
        if (arena.scope().isAlive()) {
            arena.close();
        }
    }

    @SuppressWarnings("unchecked") // events are objects
    private void poll() {
        byte[] json = host.poll(opened.handle(), POLL_CAPACITY_BYTES);
        if (json.length > 0) {
            events.addAll((List<Map<String, Object>>) decode(json).get("events"));
            events.removeIf(event -> "timeline".equals(event.get("event"))); // long tests do not read them
        }
    }

    private MemorySegment page(int layer, int page) {
        return memory.asSlice(layer * LAYER_BYTES + (long) page * PAGE_BYTES, PAGE_BYTES);
    }

    static Map<String, Object> options(String role) {
        Map<String, Object> options = new LinkedHashMap<>();
        options.put("role", role);
        options.put("engineId", "test-" + role);
        options.put("listenHost", "127.0.0.1");
        options.put("listenPort", 0);
        options.put("advertiseHost", "");
        options.put("metricsHost", "127.0.0.1");
        options.put("metricsPort", 0);
        options.put("sharedSecret", "");
        options.put("transports", List.of("tcp"));
        options.put("streamsPerPeer", 2);
        options.put("grantWaitMillis", HOUR_MILLIS);
        options.put("fetchLimitMillis", HOUR_MILLIS);
        options.put("pageChecksum", "off");
        options.put("timelines", "full");
        options.put("connectLimitMillis", HOUR_MILLIS);
        options.put("heartbeatMillis", 200);
        options.put("silenceLimitMillis", HOUR_MILLIS);
        options.put("engineApiUrl", "");
        return options;
    }

    private Map<String, Object> geometry() {
        List<Map<String, Object>> layers = layers(LAYER_COUNT, LAYER_BYTES, PAGE_BYTES);
        Map<String, Object> geometry = new LinkedHashMap<>();
        geometry.put("model", "tiny@1");
        geometry.put("groups", List.of(group("float32", 4, PAGE_TOKENS, "HND", 4, PAGE_COUNT)));
        geometry.put("tpSize", 1);
        geometry.put("ppSize", 1);
        Map<String, Object> kv = Map.of(
                "address",
                memory.address(),
                "lengthBytes",
                memory.byteSize(),
                "memfd",
                shared == null ? -1 : shared.memfd());
        geometry.put("ranks", List.of(Map.of("tpRank", 0, "ppRank", 0, "memories", List.of(kv), "layers", layers)));
        return geometry;
    }

    /** A group of full attention. */
    static Map<String, Object> group(
            String dtype, int elementBytes, int pageTokens, String layout, int kvHeadCount, int pageCount) {
        Map<String, Object> group = new LinkedHashMap<>();
        group.put("kind", "full");
        group.put("windowTokens", 0);
        group.put("dtype", dtype);
        group.put("elementBytes", elementBytes);
        group.put("pageTokens", pageTokens);
        group.put("layout", layout);
        group.put("kvHeadCount", kvHeadCount);
        group.put("pageCount", pageCount);
        return group;
    }

    /** Of one memory, in which layer follows layer and page follows page. */
    static List<Map<String, Object>> layers(int count, long layerBytes, int pageBytes) {
        List<Map<String, Object>> layers = new ArrayList<>();
        for (int layer = 0; layer < count; layer++) {
            layers.add(Map.of(
                    "name",
                    "layer." + layer,
                    "groupIndex",
                    0,
                    "memoryIndex",
                    0,
                    "offsetBytes",
                    layer * layerBytes,
                    "pageStrideBytes",
                    pageBytes,
                    "pageBytes",
                    pageBytes));
        }
        return layers;
    }

    static byte[] encode(Object json) {
        try {
            return JSON.std.asBytes(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static Map<String, Object> decode(byte[] json) {
        try {
            return JSON.std.mapFrom(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
