package io.kvmessenger.connector;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The test's end of a {@link ShardedEngine} in a process of its own. */
final class ShardedProcess implements AutoCloseable {
    private final Process process;
    private final BufferedReader output;
    private String address = "";

    ShardedProcess(String role, String transport, ShardedShape shape) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of(
                "-ea",
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                "-Xmx96m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1"));
        String classPath = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        command.addAll(List.of("-cp", classPath, ShardedEngine.class.getName(), role, transport));
        command.addAll(shape.words());
        process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** Where its messenger listens; waits until it does. */
    String address() {
        if (address.isEmpty()) {
            address = answer();
        }
        return address;
    }

    void tell(String line) throws IOException {
        process.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
        process.getOutputStream().flush();
    }

    String answer() {
        try {
            String line = output.readLine();
            if (line == null) {
                throw new AssertionError("the process of " + address + " has ended");
            }
            return line;
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** Closes its input, which ends it in good order. */
    @Override
    public void close() {
        try {
            process.getOutputStream().close();
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException | InterruptedException e) {
            process.destroyForcibly();
        }
    }
}
