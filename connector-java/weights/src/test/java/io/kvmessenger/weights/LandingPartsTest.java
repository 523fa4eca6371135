package io.kvmessenger.weights;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class LandingPartsTest {
    private static final LandingParts PARTS = LandingParts.PRODUCTION;

    @ParameterizedTest
    @ValueSource(longs = {1, 4 << 20, (4 << 20) + 1, (12 << 20) - 1, 1L << 40})
    void shouldCoverEveryByteOnce(long lengthBytes) {
        long count = PARTS.writeCount(lengthBytes);
        assertThat(PARTS.offsetBytes(0)).isZero();
        assertThat(PARTS.offsetBytes(count - 1) + PARTS.lengthBytes(count - 1, lengthBytes))
                .isEqualTo(lengthBytes);
        assertThat(LongStream.range(1, Math.min(count, 100))
                        .allMatch(write -> PARTS.offsetBytes(write)
                                == PARTS.offsetBytes(write - 1) + PARTS.lengthBytes(write - 1, lengthBytes)))
                .isTrue();
    }

    @Test
    void shouldWriteLessLast() {
        assertThat(PARTS.lengthBytes(1, PARTS.writeBytes() + 3)).isEqualTo(3);
    }
}
