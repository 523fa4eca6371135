package io.kvmessenger.testkit.transfer;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;

/** The connected internet sockets of this process, from the kernel's list: also those that a library opened. */
final class FabricSockets {
    private static final String ESTABLISHED = "01";
    private static final int STATE_FIELD = 3;
    private static final int INODE_FIELD = 9;

    private FabricSockets() {}

    /** Their descriptors. */
    static Set<Integer> connected() {
        Set<Integer> connected = new HashSet<>();
        try (Stream<Path> descriptors = Files.list(Path.of("/proc/self/fd"))) {
            Set<String> inodes = inodes();
            for (Path descriptor : descriptors.toList()) {
                if (inodes.contains(targetOf(descriptor))) {
                    connected.add(Integer.parseInt(descriptor.getFileName().toString()));
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return connected;
    }

    private static Set<String> inodes() throws IOException {
        Set<String> inodes = new HashSet<>();
        List<String> lines = new ArrayList<>(Files.readAllLines(Path.of("/proc/self/net/tcp")));
        for (String line : lines.subList(1, lines.size())) {
            String[] fields = line.trim().split("\\s+", -1);
            if (fields[STATE_FIELD].equals(ESTABLISHED)) {
                inodes.add("socket:[" + fields[INODE_FIELD] + "]");
            }
        }
        return inodes;
    }

    private static String targetOf(Path descriptor) {
        try {
            return Files.readSymbolicLink(descriptor).toString();
        } catch (IOException e) {
            // The descriptor of the listing itself is gone by now.
            return "";
        }
    }
}
