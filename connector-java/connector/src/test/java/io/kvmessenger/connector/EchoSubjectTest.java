package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Map;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Messengers without any KV, in a process in which two others move KV. */
@Timeout(600)
class EchoSubjectTest {
    private static final int LENGTH_BYTES = 300_000;
    private static final String WORD = "marco";

    @ParameterizedTest
    @CsvSource({"tcp,''", "shm,''", "tcp,a secret"})
    void shouldMoveBytesBesideAKvCache(String transport, String secret) throws InterruptedException {
        try (SteadyPair kv = new SteadyPair(Map.of(), Map.of());
                EchoSide echoer = new EchoSide("echoer", WORD, secret, transport);
                EchoSide asker = new EchoSide("asker", WORD, secret, transport)) {
            for (long id = 1; id <= 3; id++) {
                fill(echoer.bytes, id);
                asker.ask(id, echoer.port, LENGTH_BYTES);
                assertThat(asker.events.take()).isEqualTo("arrived " + id);
                assertThat(asker.bytes.asSlice(0, LENGTH_BYTES).mismatch(echoer.bytes.asSlice(0, LENGTH_BYTES)))
                        .isEqualTo(-1);
                assertThat(asker.bytes.get(ValueLayout.JAVA_BYTE, LENGTH_BYTES)).isZero();
            }
            kv.awaitTransfer();
            kv.stop();
            assertThat(echoer.faults).isEmpty();
            assertThat(asker.faults).isEmpty();
        }
    }

    @Test
    void shouldRefuseAPeerThatMovesAnotherThing() throws InterruptedException {
        try (SteadyPair kv = new SteadyPair(Map.of(), Map.of());
                EchoSide asker = new EchoSide("asker", WORD, "", "tcp")) {
            asker.ask(1, kv.prefiller.opened.controlPort(), LENGTH_BYTES);
            assertThat(asker.events.take())
                    .startsWith("failed 1: ")
                    .contains("subject is", "'echo'", "'kv_cache'", "connect messengers that move the same");
            kv.awaitTransfer();
            kv.stop();
        }
    }

    @Test
    void shouldRefuseAPeerWhoseDescriptionDoesNotFit() throws InterruptedException {
        try (EchoSide echoer = new EchoSide("echoer", "polo", "", "tcp");
                EchoSide asker = new EchoSide("asker", WORD, "", "tcp")) {
            asker.ask(1, echoer.port, LENGTH_BYTES);
            assertThat(asker.events.take()).startsWith("failed 1: ").contains("word is 'marco'");
        }
    }

    @Test
    void shouldEndWithOneEventWhenThePeerIsGone() throws InterruptedException {
        int port;
        try (EchoSide asker = new EchoSide("asker", WORD, "", "tcp")) {
            try (EchoSide echoer = new EchoSide("echoer", WORD, "", "tcp")) {
                port = echoer.port;
                asker.ask(1, port, LENGTH_BYTES);
                assertThat(asker.events.take()).isEqualTo("arrived 1");
            }
            asker.ask(2, port, LENGTH_BYTES);
            assertThat(asker.events.take()).startsWith("failed 2: ");
            assertThat(asker.events).isEmpty();
            assertThat(asker.faults).isEmpty();
        }
    }

    private static void fill(MemorySegment bytes, long seed) {
        byte[] random = new byte[LENGTH_BYTES];
        new SplittableRandom(seed).nextBytes(random);
        MemorySegment.copy(random, 0, bytes, ValueLayout.JAVA_BYTE, 0, LENGTH_BYTES);
    }
}
