package io.kvmessenger.testkit.transfer;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Starts a class of the test's class path in a process of its own. Pure functions. */
final class ChildJvm {
    private ChildJvm() {}

    static List<String> command(Class<?> main, String... arguments) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of(
                "--enable-native-access=ALL-UNNAMED",
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
                "-XX:-UsePerfData",
                "-ea"));
        String standIn = "kvmessenger.cuda-stand-in";
        command.add("-D" + standIn + "=" + System.getProperty(standIn, ""));
        command.addAll(List.of("-cp", classPath(), main.getName()));
        command.addAll(List.of(arguments));
        return command;
    }

    private static String classPath() {
        return System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
    }
}
