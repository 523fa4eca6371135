package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a child process of an engine would inherit of its messenger: nothing. */
@Timeout(900)
class CloseOnExecTest {
    /** O_CLOEXEC, as /proc shows the flags of a descriptor. */
    private static final int CLOSE_ON_EXEC = 02000000;

    private static final int PORT_COLUMN = 1;
    private static final int INODE_COLUMN = 9;

    @Test
    void shouldLeaveNoSocketOfAMessengerToAChild() throws Exception {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            decoder.fetch("d", "t", prefiller.opened, EngineDouble.PAGE_TOKENS, 0, List.of(1));
            prefiller.awaitGauge("kv_messenger_sessions_open", 1);
            Set<Integer> ports = Set.of(
                    prefiller.opened.controlPort(), prefiller.opened.metricsPort(), decoder.opened.metricsPort());
            // marked a moment after they were opened; a messenger that never does makes this test end at its limit
            while (!inherited(ports).isEmpty()) {
                Thread.sleep(1);
            }
            assertThat(inodes(ports))
                    .hasSizeGreaterThanOrEqualTo(4); // three listeners and a link, which has two ends here
        }
    }

    /** Descriptors of sockets on these ports, or that reach them, which lack close-on-exec. */
    private static List<String> inherited(Set<Integer> ports) throws IOException {
        Set<String> ours = inodes(ports);
        List<String> lacking = new ArrayList<>();
        for (Path descriptor : list(Path.of("/proc/self/fd"))) {
            try {
                String target = Files.readSymbolicLink(descriptor).toString();
                if (ours.contains(target) && !closesOnExec(descriptor.getFileName())) {
                    lacking.add(descriptor + " " + target);
                }
            } catch (NoSuchFileException closed) {
                // closed since it was listed
            }
        }
        return lacking;
    }

    private static boolean closesOnExec(Path descriptor) throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/fdinfo").resolve(descriptor))) {
            if (line.startsWith("flags:")) {
                return (Integer.parseInt(line.substring("flags:".length()).strip(), 8) & CLOSE_ON_EXEC) != 0;
            }
        }
        throw new AssertionError("no flags of descriptor " + descriptor);
    }

    /** Of all TCP sockets that stand on one of these ports, or are connected to one: as links in /proc name them. */
    private static Set<String> inodes(Set<Integer> ports) throws IOException {
        return Stream.concat(
                        Files.readAllLines(Path.of("/proc/self/net/tcp")).stream()
                                .skip(1),
                        Files.readAllLines(Path.of("/proc/self/net/tcp6")).stream()
                                .skip(1))
                .map(line -> line.strip().split("\\s+", -1))
                .filter(columns ->
                        ports.contains(port(columns[PORT_COLUMN])) || ports.contains(port(columns[PORT_COLUMN + 1])))
                .filter(columns -> !columns[INODE_COLUMN].equals("0"))
                .map(columns -> "socket:[" + columns[INODE_COLUMN] + "]")
                .collect(Collectors.toSet());
    }

    private static int port(String address) {
        return Integer.parseInt(address.substring(address.indexOf(':') + 1), 16);
    }

    private static List<Path> list(Path folder) throws IOException {
        try (Stream<Path> entries = Files.list(folder)) {
            return entries.toList();
        }
    }
}
