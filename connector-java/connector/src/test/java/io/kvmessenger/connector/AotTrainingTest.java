package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThatCode;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

class AotTrainingTest {
    @Test
    @Timeout(900)
    void shouldFetchOnceOverTheTransportItIsGiven() {
        assertThatCode(() -> AotTraining.main(new String[] {"tcp"})).doesNotThrowAnyException();
    }
}
