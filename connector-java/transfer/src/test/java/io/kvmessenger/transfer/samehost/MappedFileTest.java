package io.kvmessenger.transfer.samehost;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class MappedFileTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long LENGTH_BYTES = 4 * MappedFile.CHUNK_BYTES;
    /** The kernel maps some pages beside one that is touched. */
    private static final long NEIGHBOURS_BYTES = 1 << 17;

    private static final long KIB = 1024;

    private final int fd = ForeignMemory.createFile(LIB_C, "mapped-file-test", LENGTH_BYTES);
    private final MappedFile owner = MappedFile.map(LIB_C, fd, LENGTH_BYTES);
    private final MappedFile peer = MappedFile.map(LIB_C, fd, LENGTH_BYTES);

    @AfterEach
    void close() {
        owner.close();
        peer.close();
        LIB_C.close(fd);
    }

    /** What of a mapping its process has mapped, and what of the file there is at all, by /proc/self/smaps. */
    private static long mappedBytes(MappedFile file) throws IOException {
        String begin = Long.toHexString(file.memory().address()) + "-";
        List<String> lines = Files.readAllLines(Path.of("/proc/self/smaps"));
        int at = 0;
        while (!lines.get(at).startsWith(begin)) {
            at++;
        }
        while (!lines.get(at).startsWith("Rss:")) {
            at++;
        }
        return KIB * Long.parseLong(lines.get(at).replaceAll("\\D", ""));
    }

    @Test
    void shouldMapTheChunksOfARangeAheadWithoutAnAccess() throws IOException {
        owner.memory().fill((byte) 7);
        assertThat(mappedBytes(peer)).isZero();
        peer.mapAhead(MappedFile.CHUNK_BYTES - 1, 2);
        assertThat(mappedBytes(peer))
                .isBetween(2 * MappedFile.CHUNK_BYTES, 2 * MappedFile.CHUNK_BYTES + NEIGHBOURS_BYTES);
        peer.mapAhead(0, LENGTH_BYTES);
        assertThat(mappedBytes(peer)).isEqualTo(LENGTH_BYTES);
        assertThat(peer.memory().mismatch(owner.memory())).isEqualTo(-1);
    }

    @Test
    void shouldMapAheadAFewPagesAtATimeUntilAllAreMapped() throws IOException {
        owner.memory().fill((byte) 7);
        peer.mapAhead(MappedFile.CHUNK_BYTES, 1);
        int cycles = 0;
        while (peer.mapNextAhead()) {
            cycles++;
        }
        assertThat(cycles).as("the others").isEqualTo((int) (LENGTH_BYTES / MappedFile.CHUNK_BYTES) - 1);
        assertThat(mappedBytes(peer)).isEqualTo(LENGTH_BYTES);
    }

    @Test
    void shouldLookAgainAtWhatTheOwnerHadNotTouched() throws IOException {
        while (peer.mapNextAhead()) {
            assertThat(mappedBytes(peer)).isZero();
        }
        owner.memory().fill((byte) 7);
        peer.mapAhead(0, LENGTH_BYTES);
        assertThat(mappedBytes(peer)).isEqualTo(LENGTH_BYTES);
    }

    @Test
    void shouldMakeNoPageThatTheOwnerHasNotTouched() throws IOException {
        MemorySegment all = owner.memory();
        for (long page = 0; page < LENGTH_BYTES; page += 8192) {
            all.set(ValueLayout.JAVA_BYTE, page, (byte) 7);
        }
        long touchedBytes = mappedBytes(owner);
        peer.mapAhead(0, LENGTH_BYTES);
        assertThat(mappedBytes(peer)).isZero();
        assertThat(mappedBytes(owner)).isEqualTo(touchedBytes);
    }
}
