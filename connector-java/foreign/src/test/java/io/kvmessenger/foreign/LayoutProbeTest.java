package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Holds every offset, size and constant to what the C compiler of this machine says. */
final class LayoutProbeTest {
    private static final String INCLUDES = """
            #define _GNU_SOURCE
            #include <errno.h>
            #include <fcntl.h>
            #include <linux/sockios.h>
            #include <netinet/in.h>
            #include <netinet/tcp.h>
            #include <stddef.h>
            #include <stdio.h>
            #include <sys/epoll.h>
            #include <sys/eventfd.h>
            #include <sys/ioctl.h>
            #include <sys/mman.h>
            #include <sys/socket.h>
            #include <sys/uio.h>
            #include <sys/un.h>
            #include <unistd.h>
            #ifndef SO_PEERPIDFD /* headers before Linux 6.5 */
            #define SO_PEERPIDFD 77
            #endif
            """;

    @TempDir
    private Path folder;

    private static Map<String, Long> layouts() {
        Map<String, Long> expected = new LinkedHashMap<>();
        expected.put("sizeof(struct iovec)", IoVector.SIZE_BYTES);
        expected.put("offsetof(struct iovec, iov_base)", IoVector.BASE_OFFSET);
        expected.put("offsetof(struct iovec, iov_len)", IoVector.LENGTH_OFFSET);
        expected.put("sizeof(struct epoll_event)", Epoll.SIZE_BYTES);
        expected.put("offsetof(struct epoll_event, events)", Epoll.EVENTS_OFFSET);
        expected.put("offsetof(struct epoll_event, data)", Epoll.DATA_OFFSET);
        expected.put("sizeof(struct msghdr)", MessageHeader.SIZE_BYTES);
        expected.put("offsetof(struct msghdr, msg_iov)", MessageHeader.VECTORS_OFFSET);
        expected.put("offsetof(struct msghdr, msg_iovlen)", MessageHeader.VECTOR_COUNT_OFFSET);
        expected.put("offsetof(struct msghdr, msg_control)", MessageHeader.CONTROL_OFFSET);
        expected.put("offsetof(struct msghdr, msg_controllen)", MessageHeader.CONTROL_LENGTH_OFFSET);
        expected.put("offsetof(struct msghdr, msg_flags)", MessageHeader.FLAGS_OFFSET);
        expected.put("offsetof(struct cmsghdr, cmsg_level)", MessageHeader.CONTROL_LEVEL_OFFSET);
        expected.put("offsetof(struct cmsghdr, cmsg_type)", MessageHeader.CONTROL_TYPE_OFFSET);
        expected.put("CMSG_LEN(0)", MessageHeader.CONTROL_DATA_OFFSET);
        expected.put("CMSG_SPACE(3 * sizeof(int))", MessageHeader.controlSpaceBytes(3));
        expected.put("sizeof(struct sockaddr_in)", (long) SocketAddresses.INET_SIZE_BYTES);
        expected.put("sizeof(struct sockaddr_in6)", (long) SocketAddresses.INET6_SIZE_BYTES);
        expected.put("offsetof(struct sockaddr_in, sin_port)", SocketAddresses.PORT_OFFSET);
        expected.put("offsetof(struct sockaddr_in, sin_addr)", SocketAddresses.INET_ADDRESS_OFFSET);
        expected.put("offsetof(struct sockaddr_in6, sin6_addr)", SocketAddresses.INET6_ADDRESS_OFFSET);
        expected.put("offsetof(struct sockaddr_un, sun_path)", SocketAddresses.PATH_OFFSET);
        expected.put("sizeof(struct ucred)", SocketApi.UCRED_SIZE_BYTES);
        expected.put("offsetof(struct ucred, pid)", SocketApi.UCRED_PID_OFFSET);
        expected.put("offsetof(struct ucred, uid)", SocketApi.UCRED_UID_OFFSET);
        return expected;
    }

    /** The public int constants of these classes bear their C names. */
    private static Map<String, Long> constants() throws IllegalAccessException {
        Map<String, Long> expected = new LinkedHashMap<>();
        for (Class<?> owner : new Class<?>[] {Errno.class, Epoll.class, SocketApi.class, MemoryApi.class}) {
            for (var field : owner.getFields()) {
                if (field.getType() == int.class) {
                    expected.put("(int) " + field.getName(), (long) field.getInt(null));
                }
            }
        }
        return expected;
    }

    @Test
    void shouldAgreeWithTheCompiler() throws IOException, InterruptedException, IllegalAccessException {
        Map<String, Long> expected = layouts();
        expected.putAll(constants());
        StringBuilder source = new StringBuilder(INCLUDES).append("int main(void) {\n");
        expected.keySet()
                .forEach(term -> source.append("printf(\"%lld\\n\", (long long)(")
                        .append(term)
                        .append("));\n"));
        source.append("}\n");
        Files.writeString(folder.resolve("probe.c"), source);
        if (run("sh", "-c", "command -v cc") == null) {
            System.out.println("skipped: no C compiler (cc) to hold the layouts to");
            Assumptions.abort("no C compiler");
        }
        assertThat(run(
                        "cc",
                        "-o",
                        folder.resolve("probe").toString(),
                        folder.resolve("probe.c").toString()))
                .isNotNull();
        var seen = run(folder.resolve("probe").toString()).lines().iterator();
        for (var entry : expected.entrySet()) {
            assertThat(Long.parseLong(seen.next())).as(entry.getKey()).isEqualTo(entry.getValue());
        }
    }

    /** What the command printed, or null when it failed. */
    static String run(String... command) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return process.waitFor() == 0 ? output : null;
    }
}
