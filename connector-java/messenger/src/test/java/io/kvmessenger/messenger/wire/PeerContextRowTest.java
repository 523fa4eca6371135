package io.kvmessenger.messenger.wire;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import org.junit.jupiter.api.Test;

class PeerContextRowTest {
    private static List<PeerContextRow> decode(long regionBytes, long strideBytes, int rowBytes, int rowCount) {
        return PeerContextRow.decode(Attach.newBuilder()
                .addContext(Attach.ContextRow.newBuilder()
                        .setName("state")
                        .setRegion(Region.newBuilder().setLengthBytes(regionBytes))
                        .setStrideBytes(strideBytes)
                        .setRowBytes(rowBytes)
                        .setRowCount(rowCount))
                .build());
    }

    @Test
    void shouldTakeRowsThatLieInTheirRegion() {
        assertThat(decode(300, 100, 100, 3)).hasSize(1);
        assertThat(decode(240, 100, 40, 3)).hasSize(1);
        assertThat(decode(40, 100, 40, 1)).hasSize(1);
    }

    @Test
    void shouldNotTakeRowsOutsideTheirRegion() {
        assertOutside(239, 100, 40, 3);
        assertOutside(300, 100, 0, 3);
        assertOutside(300, 100, 100, 0);
        assertOutside(300, 99, 100, 2);
        assertOutside(39, 100, 40, 1);
        assertOutside(-1, 100, 40, 1);
    }

    @Test
    void shouldNotBeFooledByNumbersThatOverflow() {
        assertOutside(Long.MAX_VALUE, Long.MAX_VALUE, 1, Integer.MAX_VALUE);
        assertOutside(Long.MAX_VALUE, 1L << 62, Integer.MAX_VALUE, 3);
    }

    private static void assertOutside(long regionBytes, long strideBytes, int rowBytes, int rowCount) {
        assertThatThrownBy(() -> decode(regionBytes, strideBytes, rowBytes, rowCount))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("context row state");
    }
}
