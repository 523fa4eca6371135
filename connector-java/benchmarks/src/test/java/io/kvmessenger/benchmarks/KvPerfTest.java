package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Real runs, small: both processes are real, and so is every write. */
class KvPerfTest {
    private static final long LIMIT_SECONDS = 600;

    @TempDir
    Path folder;

    @ParameterizedTest
    @CsvSource({
        "shm, paged, own",
        "shm, single, caller",
        "shm, pingpong, own",
        "shm, pingpong, caller",
        "tcp, paged, caller",
        "tcp, single, own",
        "tcp, pingpong, caller"
    })
    void shouldMoveEveryByteAndLeaveOneLineOfFigures(String transport, String op, String threading) throws Exception {
        Path output = folder.resolve("line.jsonl");
        int exitCode = run(
                "--transport",
                transport,
                "--op",
                op,
                "--threading",
                threading,
                "--page-bytes",
                "4K",
                "--page-count",
                "50",
                "--pool-bytes",
                "1M",
                "--rounds",
                "2",
                "--check",
                "--output",
                output.toString());
        assertThat(exitCode).as(Files.readString(folder.resolve("log"))).isZero();
        assertThat(Files.readAllLines(output)).hasSize(1);
        assertThat(Files.readString(output))
                .startsWith("{\"transport\": \"" + transport + "\", \"op\": \"" + op + "\", \"pageBytes\": 4096,")
                .contains("\"checked\": true");
    }

    @Test
    void shouldMoveEveryByteOverSeveralPeersAndWorkers() throws Exception {
        Path output = folder.resolve("line.jsonl");
        int exitCode = run(
                "--workers",
                "2",
                "--peers",
                "3",
                "--batch-pages",
                "8",
                "--page-bytes",
                "4K",
                "--page-count",
                "50",
                "--pool-bytes",
                "1M",
                "--rounds",
                "2",
                "--check",
                "--output",
                output.toString());
        assertThat(exitCode).as(Files.readString(folder.resolve("log"))).isZero();
        assertThat(Files.readString(output)).contains("\"peers\": 3, \"workers\": 2", "\"checked\": true");
    }

    /** Two processes that know each other by an address only, as on two hosts. */
    @Test
    void shouldMeasureATargetThatListens() throws Exception {
        Path output = folder.resolve("line.jsonl");
        Process target = start("target", "--listen", "127.0.0.1:0");
        try {
            String place = placeOf(target);
            for (String op : List.of("paged", "pingpong")) {
                int exitCode = run(("--dial " + place
                                + " --transport tcp --page-bytes 4K --page-count 50 --pool-bytes 1M --rounds 2"
                                + " --check --op " + op + " --output " + output)
                        .split(" "));
                assertThat(exitCode).as(Files.readString(folder.resolve("log"))).isZero();
            }
            assertThat(run("--dial", place, "--op", "juggle")).isEqualTo(2);
        } finally {
            target.destroy();
        }
        assertThat(Files.readAllLines(output)).hasSize(2).allMatch(line -> line.contains("\"checked\": true"));
        assertThat(run("--dial", "127.0.0.1:1")).isEqualTo(1);
        assertThat(Files.readString(folder.resolve("log"))).contains("the target at 127.0.0.1:1 cannot be reached");
    }

    private String placeOf(Process target) throws IOException, InterruptedException {
        String before = "listening at ";
        while (target.isAlive()) {
            String given = Files.readString(folder.resolve("target"));
            if (given.contains(before) && given.endsWith("\n")) {
                return given.lines()
                        .filter(line -> line.contains(before))
                        .findFirst()
                        .orElseThrow()
                        .substring("kvperf: ".length() + before.length());
            }
            Thread.sleep(20);
        }
        throw new AssertionError(Files.readString(folder.resolve("target")));
    }

    private Process start(String log, String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "--enable-native-access=ALL-UNNAMED",
                "-cp",
                System.getProperty("java.class.path"),
                KvPerf.class.getName()));
        command.addAll(List.of(arguments));
        return new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve(log).toFile())
                .start();
    }

    private int run(String... arguments) throws IOException, InterruptedException {
        Process process = start("log", arguments);
        if (!process.waitFor(LIMIT_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new AssertionError("kvperf still runs after " + LIMIT_SECONDS + " s");
        }
        return process.exitValue();
    }
}
