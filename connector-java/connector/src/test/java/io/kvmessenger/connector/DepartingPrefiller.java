package io.kvmessenger.connector;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;

/**
 * A prefiller in a process of its own, which computes some prompts and two thirds of another one. It ends at the moment
 * at which one of the whole ones has left: in good order, or by SIGKILL. What had left stands in a file that outlives
 * it.
 */
final class DepartingPrefiller implements AutoCloseable {
    static final int PROMPTS = 4;
    static final int PROMPT_TOKENS = 180;
    /** Of the last prompt, which is never whole. */
    private static final int PART_TOKENS = 128;

    private static final int PAGES_EACH = 12;

    /** How it ends. */
    enum Ending {
        IN_ORDER(0),
        KILLED(128 + Signals.KILL);

        final int exitStatus;

        Ending(int exitStatus) {
            this.exitStatus = exitStatus;
        }
    }

    final Process process;
    final String round;
    private final Path marks;
    private final BufferedReader output;

    /** @param leftBefore whole prompts that leave before it ends; of the others each may have left or not */
    DepartingPrefiller(String transport, String round, Ending ending, int leftBefore) throws IOException {
        this.round = round;
        marks = Files.write(Files.createTempFile("left", ""), new byte[PROMPTS]);
        process = TestJvm.start(
                List.of(),
                DepartingPrefiller.class,
                transport,
                round,
                ending.name(),
                "" + leftBefore,
                marks.toString());
        output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    static String transfer(String round, int prompt) {
        return round + "-" + prompt;
    }

    /** The pages of a prompt, on either side. */
    static List<Integer> pages(int prompt) {
        return IntStream.range(prompt * PAGES_EACH, (prompt + 1) * PAGES_EACH)
                .boxed()
                .toList();
    }

    static Map<String, Object> options(String transport) {
        return Map.of("transports", List.of(transport));
    }

    /** Host and port of where it listens; waits until it does. */
    String address() throws IOException {
        String line = output.readLine();
        if (line == null) {
            throw new AssertionError("the prefiller of " + round + " has ended before it listened");
        }
        return line;
    }

    /** For each prompt whether all of it had left before the process ended. */
    boolean[] left() throws IOException {
        byte[] bytes = Files.readAllBytes(marks);
        boolean[] left = new boolean[PROMPTS + 1];
        for (int prompt = 0; prompt < PROMPTS; prompt++) {
            left[prompt] = bytes[prompt] == 1;
        }
        return left;
    }

    @Override
    public void close() throws IOException {
        process.destroyForcibly();
        Files.deleteIfExists(marks);
    }

    public static void main(String[] words) throws IOException {
        String round = words[1];
        int leftBefore = Integer.parseInt(words[3]);
        EngineDouble engine = new EngineDouble("prefiller", options(words[0]), Map.of());
        MemorySegment marks = map(Path.of(words[4]));
        computeAll(engine, round);
        System.out.println(engine.opened.controlHost() + " " + engine.opened.controlPort());
        for (int i = 0; i < leftBefore; i++) {
            String request = engine.awaitAny("released");
            marks.set(ValueLayout.JAVA_BYTE, Integer.parseInt(request), (byte) 1);
        }
        if (Ending.valueOf(words[2]) == Ending.KILLED) {
            Signals.send(ProcessHandle.current().pid(), Signals.KILL);
            new CompletableFuture<>().join(); // the signal ends it
        }
        engine.close();
    }

    private static MemorySegment map(Path file) throws IOException {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return channel.map(FileChannel.MapMode.READ_WRITE, 0, PROMPTS, Arena.global());
        }
    }

    private static void computeAll(EngineDouble engine, String round) {
        for (int prompt = 0; prompt <= PROMPTS; prompt++) {
            String request = Integer.toString(prompt);
            int endToken = prompt < PROMPTS ? PROMPT_TOKENS : PART_TOKENS;
            List<Integer> pages = pages(prompt).subList(0, Math.ceilDiv(endToken, EngineDouble.PAGE_TOKENS));
            engine.compute(prompt + 1, request, transfer(round, prompt), PROMPT_TOKENS, 0, endToken, pages, pages);
            if (prompt < PROMPTS) {
                engine.submit(Map.of("do", "prefillEnded", "request", request, "outcome", "finished"));
            }
        }
    }
}
