package io.kvmessenger.benchmarks;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A C program that does the round's work with the least overhead that the machine allows: for shm a memcpy into a
 * mapping that a second process shares, for tcp a header and a page to a blocking socket, for libfabric one call per
 * page. Compiled on this machine, so that it is measured under the same conditions.
 *
 * <p>For one thread.
 */
final class Yardstick implements AutoCloseable {
    /** Duration of a round, CPU time of both its processes, and the share of all cores that other programs used. */
    record Round(long durationNs, long cpuNs, double othersShare) {}

    private static final String HEADER = "yardstick.h";

    private final Process process;
    private final BufferedWriter commands;
    private final BufferedReader answers;

    private Yardstick(Process process) {
        this.process = process;
        commands = process.outputWriter();
        answers = process.inputReader();
    }

    static Yardstick start(KvPerfOptions options) throws IOException, InterruptedException {
        String name = switch (options.transport()) {
            case "shm" -> "memcpy_pages";
            case "tcp" -> "tcp_pages";
            case "libfabric" -> "fabric_pages";
            default -> throw new IllegalArgumentException("no yardstick for " + options.transport());
        };
        List<String> libraries = name.equals("fabric_pages") ? List.of("-l:libfabric.so.1") : List.of();
        Path folder = Files.createTempDirectory("kvperf");
        try {
            Path program = compile(folder, name, libraries);
            ProcessBuilder builder = new ProcessBuilder(
                    program.toString(),
                    Integer.toString(options.pageBytes()),
                    Integer.toString(options.pageCount()),
                    Long.toString(options.poolBytes()),
                    Long.toString(options.seed()));
            builder.environment().put("KVPERF_PROVIDER", options.provider());
            return new Yardstick(
                    builder.redirectError(ProcessBuilder.Redirect.INHERIT).start());
        } finally {
            for (String file : List.of(HEADER, name + ".c", name)) {
                Files.deleteIfExists(folder.resolve(file));
            }
            Files.delete(folder);
        }
    }

    private static Path compile(Path folder, String name, List<String> libraries)
            throws IOException, InterruptedException {
        for (String file : List.of(HEADER, name + ".c")) {
            try (InputStream source = Yardstick.class.getResourceAsStream("c/" + file)) {
                Files.copy(source, folder.resolve(file));
            }
        }
        Path program = folder.resolve(name);
        List<String> command = new ArrayList<>(List.of("cc", "-O2", "-o", name, name + ".c"));
        command.addAll(libraries);
        ProcessBuilder builder = new ProcessBuilder(command)
                .directory(folder.toFile())
                .inheritIO()
                .redirectOutput(ProcessBuilder.Redirect.DISCARD);
        try {
            if (builder.start().waitFor() != 0) {
                throw new IllegalStateException("the yardstick " + name + ".c does not compile here");
            }
        } catch (IOException e) {
            throw new IllegalArgumentException(
                    "--yardstick needs a C compiler and cc is not on PATH: install one (Debian: apt install gcc),"
                            + " or leave --yardstick out",
                    e);
        }
        return program;
    }

    Round run() throws IOException {
        commands.write("round\n");
        commands.flush();
        String answer = answers.readLine();
        if (answer == null) {
            throw new IllegalStateException("the yardstick ended");
        }
        String[] figures = answer.split(" ", -1);
        if (!figures[3].equals("0")) {
            throw new IllegalStateException("the yardstick found " + figures[3] + " wrong bytes");
        }
        long durationNs = Long.parseLong(figures[0]);
        long cpuNs = Long.parseLong(figures[1]);
        long machineNs = Long.parseLong(figures[2]);
        return new Round(durationNs, cpuNs, MachineLoad.othersShare(machineNs, cpuNs, durationNs));
    }

    @Override
    public void close() throws IOException {
        commands.close();
        try {
            if (!process.waitFor(10, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }
}
