package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.TrafficClass;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

final class LinkFileTest {
    private static final long LINK = 7;
    private static final double SHARE = 0.2;
    private static final int BULK = TrafficClass.BULK.rank();
    private static final int URGENT = TrafficClass.URGENT.rank();

    @TempDir
    private Path folder;

    private Path file;

    @BeforeEach
    void name() throws IOException {
        file = LinkFile.in(folder);
    }

    @Test
    void shouldShowToOneEngineWhatAnotherHas() throws IOException {
        LinkLoad one = new LinkLoad(LinkFile.open(file), LINK, SHARE, 0);
        LinkLoad other = new LinkLoad(LinkFile.open(file), LINK, SHARE, 0);
        one.onQueued(BULK, 1, 0);
        other.onQueued(URGENT, 1, 0);
        one.look(LinkLoad.LOOK_NS);
        assertThat(one.isContended(TrafficClass.BULK)).isTrue();
        assertThat(Files.size(file)).isEqualTo(LinkBoard.LENGTH_BYTES);
        assertThat(Files.getPosixFilePermissions(file)).isEqualTo(PosixFilePermissions.fromString("rw-------"));
    }

    @Test
    void shouldNumberALinkAlikeInAllProcesses() throws IOException {
        LinkBoard one = LinkFile.open(file);
        assertThat(one.numberOf("tcp 10.0.0.1")).isEqualTo(LinkFile.open(file).numberOf("tcp 10.0.0.1"));
        assertThat(one.numberOf("tcp 10.0.0.1")).isNotEqualTo(one.numberOf("tcp 10.0.0.2"));
    }

    @Test
    void shouldTakeRowsOfProcessesThatHaveEnded() throws IOException {
        LinkBoard board = LinkFile.open(file);
        long restarted = (ProcessHandle.current().pid() << 32) + 1; // this process's number, and another start
        long impossible = (0xffff_ffffL << 32) + 1;
        try (RandomAccessFile rows = new RandomAccessFile(file.toFile(), "rw")) {
            for (int row = 0; row < LinkBoard.ROWS; row++) {
                ByteBuffer owner = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.nativeOrder());
                owner.putLong(0, row % 2 == 0 ? restarted : impossible);
                rows.seek((long) row * LinkBoard.ROW_BYTES);
                rows.write(owner.array());
            }
        }
        for (int row = 0; row < LinkBoard.ROWS; row++) {
            assertThat(board.take(LINK)).isEqualTo(row);
        }
        assertThat(board.take(LINK)).as("all are this process's now").isEqualTo(LinkBoard.NO_ROW);
    }

    @ParameterizedTest
    @ValueSource(longs = {0, 1, LinkBoard.ROW_BYTES, LinkBoard.LENGTH_BYTES - 1, LinkBoard.LENGTH_BYTES + 1})
    void shouldUseAFileOfAnyLengthAndContent(long lengthBytes) throws IOException {
        byte[] anything = new byte[(int) lengthBytes];
        Arrays.fill(anything, (byte) 0xa5);
        Files.write(file, anything);
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
        LinkLoad load = new LinkLoad(LinkFile.open(file), LINK, SHARE, 0);
        load.onQueued(BULK, 1, 0);
        load.onQueued(URGENT, 1, 0);
        load.look(LinkLoad.LOOK_NS);
        assertThat(load.isContended(TrafficClass.BULK)).isTrue();
        assertThat(load.allowedBytes(TrafficClass.BULK)).isNotNegative();
    }

    @Test
    void shouldGoOnAloneWhenTheFileIsCut() throws IOException {
        LinkLoad load = new LinkLoad(LinkFile.open(file), LINK, SHARE, 0);
        load.onQueued(BULK, 1, 0);
        try (RandomAccessFile rows = new RandomAccessFile(file.toFile(), "rw")) {
            rows.setLength(0);
        }
        load.onQueued(URGENT, 1, 0);
        load.onEnded(URGENT, 1, 1);
        load.look(LinkLoad.LOOK_NS);
        assertThat(load.isContended(TrafficClass.BULK)).isTrue();
        load.close();
    }

    @ParameterizedTest
    @ValueSource(strings = {"rw-rw-rw-", "rw-r-----", "r--------"})
    void shouldRefuseAFileThatOthersMayChange(String permissions) throws IOException {
        Files.createFile(file);
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permissions));
        assertThatThrownBy(() -> LinkFile.open(file)).isInstanceOf(IOException.class);
    }

    @Test
    void shouldFollowNoSymbolicLink() throws IOException {
        Path target = Files.createFile(folder.resolve("other"));
        Files.createSymbolicLink(file, target);
        assertThatThrownBy(() -> LinkFile.open(file)).isInstanceOf(IOException.class);
        assertThat(Files.size(target)).isZero();
    }
}
