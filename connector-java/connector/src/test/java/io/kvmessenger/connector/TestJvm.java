package io.kvmessenger.connector;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Starts a class of the tests in a small JVM of its own. Its errors are seen in the test's output. Pure functions. */
final class TestJvm {
    private TestJvm() {}

    static Process start(List<String> options, Class<?> main, String... words) throws IOException {
        return start(command(options, main, words));
    }

    /** With so many descriptors at most. */
    static Process startLimited(int descriptorsMax, Class<?> main, String... words) throws IOException {
        List<String> command =
                new ArrayList<>(List.of("sh", "-c", "ulimit -n " + descriptorsMax + "; exec \"$@\"", "sh"));
        command.addAll(command(List.of(), main, words));
        return start(command);
    }

    private static Process start(List<String> command) throws IOException {
        return new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
    }

    private static List<String> command(List<String> options, Class<?> main, String... words) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of(
                "-ea",
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                "-Xmx96m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1"));
        command.addAll(options);
        String classPath = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        command.addAll(List.of("-cp", classPath, main.getName()));
        command.addAll(List.of(words));
        return command;
    }
}
