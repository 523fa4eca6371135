package io.kvmessenger.connector.boot;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Messengers without a network, for tests of the boundary on both sides of it. A command {@code echo} becomes the event
 * it carries, a command {@code misbehave} fails in the way it names.
 */
public final class SimulatedMessengers implements Messengers {
    /** Polls that a fence lasts for. */
    private static final int FENCE_POLLS = 101;

    private final AtomicLong nextHandle = new AtomicLong(1);
    private final Map<Long, Simulated> open = new ConcurrentHashMap<>();

    private record Simulated(MemorySegment counter, Queue<byte[]> events, AtomicReference<CountDownLatch> fence) {}

    @Override
    public OpenResult open(byte[] request) {
        Map<?, ?> options = (Map<?, ?>) parse(request).get("options");
        if (!(options.get("listenPort") instanceof Integer port)) {
            throw new RefusedException("listenPort is missing, expected a port: pass all options");
        }
        long handle = nextHandle.getAndIncrement();
        MemorySegment counter = Arena.global().allocate(ValueLayout.JAVA_LONG);
        open.put(handle, new Simulated(counter, new ConcurrentLinkedQueue<>(), new AtomicReference<>()));
        return new OpenResult(
                handle, (String) options.get("engineId"), "7", "127.0.0.1", port, "127.0.0.1", -1, counter.address());
    }

    @Override
    public void submit(long handle, byte[] request) {
        Simulated messenger = find(handle);
        for (Object command : (List<?>) parse(request).get("commands")) {
            Map<?, ?> fields = (Map<?, ?>) command;
            switch ((String) fields.get("do")) {
                case "echo" -> messenger.events.add(encode(fields.get("event")));
                case "misbehave" -> misbehave((String) fields.get("how"));
                case null, default -> throw new RefusedException("do is " + fields.get("do") + ", expected echo");
            }
        }
    }

    @Override
    public byte[] poll(long handle, int capacityBytes) {
        Simulated messenger = find(handle);
        Queue<byte[]> events = messenger.events;
        CountDownLatch fence = messenger.fence.get();
        if (fence != null) {
            fence.countDown();
        }
        StringBuilder answer = new StringBuilder("{\"events\":[");
        int room = capacityBytes - answer.length() - 2;
        int count = 0;
        for (byte[] next = events.peek(); next != null && next.length + 1 <= room; next = events.peek()) {
            answer.append(count++ == 0 ? "" : ",").append(new String(events.remove(), StandardCharsets.UTF_8));
            room -= next.length + 1;
        }
        return count == 0 ? new byte[0] : answer.append("]}").toString().getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public byte[] stats(long handle) {
        long counted = find(handle).counter.get(ValueLayout.JAVA_LONG, 0);
        return encode(Map.of(
                "counters",
                Map.of("layers_counted", counted),
                "reasons",
                Map.of(),
                "gauges",
                Map.of("open", open.size()),
                "histograms",
                Map.of()));
    }

    /** Fences when others have polled meanwhile; nothing at its limit, so that a caller which holds them up is seen. */
    @Override
    public byte[] fence(long handle, byte[] request) {
        CountDownLatch polls = new CountDownLatch(FENCE_POLLS);
        find(handle).fence.set(polls);
        Map<?, ?> asked = parse(request);
        boolean polled = awaited(polls, ((Number) asked.get("limitMillis")).longValue());
        return encode(Map.of("fenced", polled ? asked.get("requests") : List.of()));
    }

    @Override
    public byte[] leakCheck(long handle) {
        int held = find(handle).events.size();
        return encode(Map.of("clean", held == 0, "held", Map.of("events", held)));
    }

    /** Looks at once only: nothing happens here but what a caller submits. */
    @Override
    public void await(long handle, byte[] request) {
        if (find(handle).events.isEmpty()) {
            long limitMillis = ((Number) parse(request).get("limitMicros")).longValue() / 1000;
            if (awaited(new CountDownLatch(1), limitMillis)) {
                throw new AssertionError("the latch was not counted down");
            }
        }
    }

    @Override
    public void close(long handle, byte[] request) {
        open.remove(handle);
    }

    private Simulated find(long handle) {
        Simulated messenger = open.get(handle);
        if (messenger == null) {
            throw new RefusedException("handle is " + handle + ", expected one that open gave: open first");
        }
        return messenger;
    }

    private static void misbehave(String how) {
        switch (how) {
            case "null" -> throw new IllegalStateException(nothing().toString());
            case "gc" -> System.gc();
            case "stack" -> throw new IllegalStateException("depth " + depthOf(0));
            case "memory" -> {
                List<byte[]> kept = new ArrayList<>();
                while (kept.size() < Integer.MAX_VALUE) {
                    kept.add(new byte[1 << 20]);
                }
            }
            case "nullChecks" -> {
                // Enough of them for the compiler to make them implicit, that is by SIGSEGV.
                for (int i = 0; i < 200_000; i++) {
                    implicitNullCheck(i % 10_000 == 0 ? null : new int[1]);
                }
            }
            default ->
                throw new RefusedException(
                        "how is '" + how + "', expected null, gc, stack, memory or nullChecks: " + "use one of these");
        }
    }

    private static int implicitNullCheck(int[] values) {
        try {
            return values.length;
        } catch (NullPointerException e) {
            return -1;
        }
    }

    private static Object nothing() {
        return new ArrayList<>(java.util.Collections.singletonList((Object) null)).getFirst();
    }

    @SuppressWarnings("InfiniteRecursion")
    private static long depthOf(long depth) {
        return depthOf(depth + 1) + 1;
    }

    private static boolean awaited(CountDownLatch latch, long limitMillis) {
        try {
            return latch.await(limitMillis, TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    private static Map<String, Object> parse(byte[] json) {
        try {
            return JSON.std.mapFrom(json);
        } catch (IOException e) {
            throw new RefusedException("the request is not JSON: " + e.getMessage(), e);
        }
    }

    private static byte[] encode(Object value) {
        try {
            return JSON.std.asBytes(value);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
