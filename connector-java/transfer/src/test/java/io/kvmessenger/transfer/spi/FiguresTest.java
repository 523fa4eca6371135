package io.kvmessenger.transfer.spi;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferCounter;
import org.junit.jupiter.api.Test;

class FiguresTest {
    private final Figures figures = new Figures();

    @Test
    void shouldSumWhatTransportsHaveCountedAndDistinguishThem() {
        figures.ofTransport("shm").add(TransferCounter.BYTES_SENT, 3);
        figures.ofTransport("tcp").add(TransferCounter.BYTES_SENT, 4);
        figures.ofTransport("tcp").increment(TransferCounter.PATHS_LOST);
        figures.increment(TransferCounter.STRAYS);

        assertThat(figures.of(TransferCounter.BYTES_SENT)).isEqualTo(7);
        assertThat(figures.ofTransport("tcp").of(TransferCounter.BYTES_SENT)).isEqualTo(4);
        assertThat(figures.ofTransport("shm").of(TransferCounter.PATHS_LOST)).isZero();
        assertThat(figures.of(TransferCounter.STRAYS)).isEqualTo(1);
    }
}
