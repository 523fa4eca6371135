package io.kvmessenger.connector;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * A decoder in a process of its own, which stands still again and again, as one in a throttled container does, and whose
 * messenger shares its cores with busy threads. It fetches all prompts of a {@link DepartingPrefiller} and compares
 * every byte of what has arrived.
 */
final class ThrottledDecoder implements AutoCloseable {
    private static final String ARRIVED = "arrived";
    private static final String FAILED = "failed: ";
    /** Of a period: how long it runs, and how long it stands still, at most. */
    private static final long RUNNING_LIMIT_NS = 20_000_000;

    private static final long STANDING_LIMIT_NS = 50_000_000;

    /** With them it is chance which of the messenger's threads runs first after a standstill. */
    private static final int BUSY_THREADS = 8;

    private static volatile boolean busy;

    private final Process process;
    private final BufferedReader output;
    private final Random random = new Random(42);

    /** @param cores that it takes the machine to have: with four, its bytes are moved by a thread of its own */
    ThrottledDecoder(String transport, int cores) throws IOException {
        List<String> options = List.of("-XX:ActiveProcessorCount=" + cores);
        process = TestJvm.start(options, ThrottledDecoder.class, transport);
        Runtime.getRuntime()
                .addShutdownHook(new Thread(process::destroyForcibly)); // stopped, it would outlive the test
        output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** Has it fetch a round's prompts. Returns whether it stood still at the moment at which the prefiller ended. */
    boolean fetchWhileThrottled(DepartingPrefiller prefiller) throws IOException {
        write("fetch " + prefiller.round + " " + prefiller.address());
        boolean standing = false;
        while (prefiller.process.isAlive()) {
            LockSupport.parkNanos(random.nextLong(RUNNING_LIMIT_NS));
            Signals.send(process.pid(), Signals.STOP);
            standing = standStill(prefiller.process);
            Signals.send(process.pid(), Signals.CONTINUE);
        }
        return standing;
    }

    /** Returns whether the prefiller ended meanwhile. */
    private boolean standStill(Process prefiller) {
        boolean alive = prefiller.isAlive();
        try {
            return prefiller.waitFor(random.nextLong(STANDING_LIMIT_NS), TimeUnit.NANOSECONDS) && alive;
        } catch (InterruptedException e) {
            throw new AssertionError("the test has run out of its time", e);
        }
    }

    /** How the fetch of a prompt of the last round has ended; the prompts in their order. */
    String end() throws IOException {
        return read();
    }

    static boolean arrived(String end) {
        return end.equals(ARRIVED);
    }

    static boolean failedForAReason(String end) {
        return end.startsWith(FAILED) && end.length() > FAILED.length();
    }

    /** Waits until it holds nothing any more. */
    void awaitRest() throws IOException {
        write("rest");
        if (!read().equals("rest")) {
            throw new AssertionError("the decoder holds what it should not");
        }
    }

    @Override
    public void close() {
        process.destroyForcibly(); // also if it stands still
    }

    private void write(String line) throws IOException {
        process.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
        process.getOutputStream().flush();
    }

    private String read() throws IOException {
        String line = output.readLine();
        if (line == null) {
            throw new AssertionError("the decoder has ended");
        }
        return line;
    }

    public static void main(String[] words) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (EngineDouble engine = new EngineDouble("decoder", DepartingPrefiller.options(words[0]), Map.of())) {
            startBusyThreads();
            // Its parent's death closes the pipe, and with it this process.
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] request = line.split(" ", -1);
                if (request[0].equals("rest")) {
                    engine.awaitClean();
                    System.out.println("rest");
                } else {
                    busy = true;
                    fetchAll(engine, request[1], request[2], Integer.parseInt(request[3]));
                    busy = false;
                }
            }
        }
    }

    private static void startBusyThreads() {
        for (int i = 0; i < BUSY_THREADS; i++) {
            Thread.ofPlatform().daemon().name("busy-" + i).start(() -> {
                while (true) {
                    if (busy) {
                        Thread.onSpinWait();
                    } else {
                        LockSupport.parkNanos(RUNNING_LIMIT_NS);
                    }
                }
            });
        }
    }

    private static void fetchAll(EngineDouble engine, String round, String host, int port) {
        Map<String, Object> prefiller = Map.of("host", host, "port", port, "engineId", "");
        for (int prompt = DepartingPrefiller.PROMPTS; prompt >= 0; prompt--) {
            String transfer = DepartingPrefiller.transfer(round, prompt);
            List<Integer> pages = DepartingPrefiller.pages(prompt);
            engine.fillPages("nothing", pages);
            engine.submit(EngineDouble.fetchCommand(
                    transfer, transfer, List.of(prefiller), DepartingPrefiller.PROMPT_TOKENS, 0, pages));
        }
        for (int prompt = 0; prompt <= DepartingPrefiller.PROMPTS; prompt++) {
            String transfer = DepartingPrefiller.transfer(round, prompt);
            Map<String, Object> end = engine.awaitEnd(transfer);
            System.out.println(
                    end.get("event").equals("failed")
                            ? FAILED + end.get("reason")
                            : compared(engine, transfer, DepartingPrefiller.pages(prompt)));
        }
    }

    private static String compared(EngineDouble engine, String transfer, List<Integer> pages) {
        for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
            for (int k = 0; k < pages.size(); k++) {
                if (!engine.holds(layer, pages.get(k), EngineDouble.content(transfer, layer, k))) {
                    return "arrived with other bytes in page " + k + " of layer " + layer;
                }
            }
        }
        return ARRIVED;
    }
}
