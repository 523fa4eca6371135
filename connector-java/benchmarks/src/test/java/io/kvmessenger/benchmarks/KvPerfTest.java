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
    private static final long LIMIT_SECONDS = 120;

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

    private int run(String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "--enable-native-access=ALL-UNNAMED",
                "-cp",
                System.getProperty("java.class.path"),
                KvPerf.class.getName()));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve("log").toFile())
                .start();
        if (!process.waitFor(LIMIT_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new AssertionError("kvperf still runs after " + LIMIT_SECONDS + " s");
        }
        return process.exitValue();
    }
}
