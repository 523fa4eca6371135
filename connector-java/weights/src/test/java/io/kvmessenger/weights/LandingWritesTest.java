package io.kvmessenger.weights;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class LandingWritesTest {
    @ParameterizedTest
    @ValueSource(longs = {1, 4 << 20, (4 << 20) + 1, (12 << 20) - 1, 1L << 40})
    void shouldCoverEveryByteOnce(long lengthBytes) {
        long count = LandingWrites.count(lengthBytes);
        assertThat(LandingWrites.offsetBytes(0)).isZero();
        assertThat(LandingWrites.offsetBytes(count - 1) + LandingWrites.lengthBytes(count - 1, lengthBytes))
                .isEqualTo(lengthBytes);
        assertThat(LongStream.range(1, Math.min(count, 100))
                        .allMatch(write -> LandingWrites.offsetBytes(write)
                                == LandingWrites.offsetBytes(write - 1)
                                        + LandingWrites.lengthBytes(write - 1, lengthBytes)))
                .isTrue();
    }

    @Test
    void shouldWriteLessLast() {
        assertThat(LandingWrites.lengthBytes(1, LandingWrites.WRITE_BYTES + 3)).isEqualTo(3);
    }
}
