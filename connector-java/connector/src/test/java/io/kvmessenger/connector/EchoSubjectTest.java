package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Map;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Messengers without any KV, in a process in which two others move KV. */
@Timeout(900)
class EchoSubjectTest {
    private static final int LENGTH_BYTES = 300_000;
    private static final int SMALL_REGION_LENGTH_BYTES = 700_000;
    private static final String WORD = "marco";

    private final MessengerHost host = new MessengerHost();

    @ParameterizedTest
    @CsvSource({"tcp,''", "shm,''", "tcp,a secret"})
    void shouldServeBesideAKvCache(String transport, String secret) {
        serve(transport, secret);
    }

    /** By the provider that the library prefers. */
    @Test
    void shouldServeOverLibfabricBesideAKvCache() {
        InstalledFabric.assume();
        serve(TransferOptions.LIBFABRIC, "");
    }

    /** From memory of a device to memory of a device. */
    @Test
    void shouldServeOverCudaBesideAKvCache() {
        serve(TransferOptions.CUDA, "");
    }

    /** On the devices of {@code make test-rdma}. */
    @Test
    void shouldServeOverVerbsBesideAKvCache() {
        RdmaDevices.assume();
        serve(TransferOptions.VERBS, "");
    }

    /** Bytes move both ways, an ask for too much fails, and one of a peer that has ended; the KV cache goes on. */
    private static void serve(String transport, String secret) {
        try (SteadyPair kv = new SteadyPair(Map.of(), Map.of());
                EchoSide lasting = new EchoSide(kv.prefiller.host, "lasting", WORD, secret, transport)) {
            int port;
            try (EchoSide target =
                    new EchoSide(kv.prefiller.host, "target", WORD, secret, transport, SMALL_REGION_LENGTH_BYTES)) {
                port = target.opened.controlPort();
                for (long id = 1; id <= 3; id++) {
                    move(id, lasting, target);
                    move(id, target, lasting);
                }
                lasting.ask(4, port, SMALL_REGION_LENGTH_BYTES / 2 + 1);
                assertThat(lasting.end()).startsWith("failed 4: ").contains("expected at most the");
                target.awaitClean();
            }
            lasting.ask(5, port, LENGTH_BYTES);
            assertThat(lasting.end()).startsWith("failed 5: ");
            assertThat(lasting.quiet()).isTrue();
            lasting.awaitClean();
            kv.awaitTransfer();
            kv.stop();
        }
    }

    private static void move(long id, EchoSide from, EchoSide to) {
        fill(from.bytes, id + from.opened.handle());
        from.publish();
        to.ask(id, from.opened.controlPort(), LENGTH_BYTES);
        assertThat(to.end()).isEqualTo("arrived " + id);
        to.refresh();
        MemorySegment answer = to.bytes.asSlice(to.halfBytes());
        assertThat(answer.asSlice(0, LENGTH_BYTES).mismatch(from.bytes.asSlice(0, LENGTH_BYTES)))
                .isEqualTo(-1);
        assertThat(answer.get(ValueLayout.JAVA_BYTE, LENGTH_BYTES)).isZero();
    }

    @Test
    void shouldRefuseAPeerThatMovesAnotherThing() {
        try (SteadyPair kv = new SteadyPair(Map.of(), Map.of());
                EchoSide asker = side("asker", WORD)) {
            asker.ask(1, kv.prefiller.opened.controlPort(), LENGTH_BYTES);
            assertThat(asker.end())
                    .startsWith("failed 1: ")
                    .contains("subject is", "'echo'", "'kv_cache'", "connect messengers that move the same");
            asker.awaitClean();
            kv.awaitTransfer();
            kv.stop();
        }
    }

    @Test
    void shouldRefuseAPeerWhoseDescriptionDoesNotFit() {
        try (EchoSide echoer = side("echoer", "polo");
                EchoSide asker = side("asker", WORD)) {
            asker.ask(1, echoer.opened.controlPort(), LENGTH_BYTES);
            assertThat(asker.end()).startsWith("failed 1: ").contains("word is 'marco'");
        }
    }

    @Test
    void shouldEndAnAskForMoreThanThereIs() {
        try (EchoSide echoer = new EchoSide(host, "echoer", WORD, "", "tcp", 4096);
                EchoSide asker = side("asker", WORD)) {
            asker.ask(1, echoer.opened.controlPort(), EchoSide.REGION_LENGTH_BYTES / 2 + 1);
            assertThat(asker.end())
                    .isEqualTo("failed 1: lengthBytes is 524289, expected 1 to the 524288 of half this"
                            + " side's region: ask for less");
            asker.ask(2, echoer.opened.controlPort(), 2049);
            assertThat(asker.end())
                    .startsWith("failed 2: ")
                    .contains("asked for 2049 bytes, expected at most the 2048");
            asker.ask(3, echoer.opened.controlPort(), 2048);
            assertThat(asker.end()).isEqualTo("arrived 3");
            asker.awaitClean();
            echoer.awaitClean();
        }
    }

    @Test
    void shouldEndWithOneEventWhenThePeerIsGone() {
        int port;
        try (EchoSide asker = side("asker", WORD)) {
            try (EchoSide echoer = side("echoer", WORD)) {
                port = echoer.opened.controlPort();
                asker.ask(1, port, LENGTH_BYTES);
                assertThat(asker.end()).isEqualTo("arrived 1");
            }
            asker.ask(2, port, LENGTH_BYTES);
            assertThat(asker.end()).startsWith("failed 2: ");
            assertThat(asker.quiet()).isTrue();
            asker.awaitClean();
        }
    }

    @Test
    void shouldSayWhatASubjectCannotDo() {
        try (EchoSide side = side("asker", WORD)) {
            assertThat(side.opened.layerCounterAddress()).isZero();
            assertThatThrownBy(() -> host.fence(
                            side.opened.handle(), EngineDouble.encode(Map.of("requests", new String[] {"r"}))))
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("subject 'echo' was asked for a fence");
            assertThatThrownBy(() -> host.open(EngineDouble.encode(
                            Map.of("options", EngineDouble.options("both"), "subject", Map.of("kind", "adapters")))))
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("open.subject.kind is 'adapters', expected one of echo, kv_cache");
        }
    }

    private EchoSide side(String name, String word) {
        return new EchoSide(host, name, word, "", "tcp");
    }

    private static void fill(MemorySegment bytes, long seed) {
        byte[] random = new byte[LENGTH_BYTES];
        new SplittableRandom(seed).nextBytes(random);
        MemorySegment.copy(random, 0, bytes, ValueLayout.JAVA_BYTE, 0, LENGTH_BYTES);
    }
}
