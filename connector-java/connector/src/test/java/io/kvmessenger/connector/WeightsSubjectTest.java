package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Weights from a sender into the landings of hosts, over real links and data paths. */
@Timeout(900)
class WeightsSubjectTest {
    private static final long LENGTH_BYTES = (13 << 20) + 64;
    private static final String MANIFEST = "ab".repeat(32);

    private final MessengerHost host = new MessengerHost();

    @ParameterizedTest
    @CsvSource({"tcp,''", "shm,''", "tcp,a secret of sixteen", "shm,a secret of sixteen"})
    void shouldServeOneVersionAfterTheOther(String transport, String secret) {
        try (WeightsSide sender = side("sender", transport, secret);
                WeightsSide first = side("host", transport, secret);
                WeightsSide second = side("host", transport, secret)) {
            attach(first, sender, "one");
            attach(second, sender, "two");
            for (long version = 3; version < 6; version++) {
                fill(sender.bytes(), version);
                sender.send(version * 10, version, "one", "two");
                assertThat(List.of(sender.next(), sender.next()))
                        .containsExactlyInAnyOrder("landed one " + version * 10, "landed two " + version * 10);
                for (WeightsSide each : List.of(first, second)) {
                    assertThat(each.next()).isEqualTo("landed " + version * 10 + " " + version);
                    assertThat(each.bytes().mismatch(sender.bytes())).isEqualTo(-1);
                    load(each, sender, version * 10);
                }
                sender.awaitClean();
                first.awaitClean();
            }
        }
    }

    private static void load(WeightsSide each, WeightsSide sender, long updateId) {
        each.apply(updateId);
        assertThat(each.next()).isEqualTo("decided " + updateId + " ");
        each.applied(updateId, "");
        assertThat(sender.next()).startsWith("applied ").endsWith(" " + updateId);
    }

    @Test
    void shouldRefuseAVersionThatIsNotNewer() {
        try (WeightsSide sender = side("sender", "tcp", "");
                WeightsSide target = side("host", "tcp", "")) {
            attach(target, sender, "one");
            sender.send(1, 5, "one");
            assertThat(sender.next()).isEqualTo("landed one 1");
            assertThat(target.next()).isEqualTo("landed 1 5");
            load(target, sender, 1);
            for (long version : new long[] {4, 5}) {
                sender.send(version + 10, version, "one");
                assertThat(sender.next())
                        .isEqualTo("refused one " + (version + 10) + " version is " + version
                                + ", expected one above 5, which this server serves: send a newer one");
            }
            target.apply(1);
            assertThat(target.next()).isEqualTo("decided 1 version 5 has been loaded");
        }
    }

    @Test
    void shouldLetNothingBeAppliedThatHasNotLanded() {
        try (WeightsSide sender = side("sender", "tcp", "");
                WeightsSide target = side("host", "tcp", "")) {
            target.apply(1);
            assertThat(target.next()).isEqualTo("decided 1 it has not landed");
            attach(target, sender, "one");
            sender.send(2, 1, "one");
            assertThat(target.next()).isEqualTo("landed 2 1");
            target.apply(1);
            assertThat(target.next()).isEqualTo("decided 1 update 2 is in the landing");
            target.apply(2);
            assertThat(target.next()).isEqualTo("decided 2 ");
            target.applied(2, "a rank has no memory");
            assertThat(List.of(sender.next(), sender.next()))
                    .containsExactly("landed one 2", "refused one 2 a rank has no memory");
            target.apply(2);
            assertThat(target.next()).isEqualTo("decided 2 it has not landed");
        }
    }

    @Test
    void shouldTakeTheNextSendersUpdateWhenOneHasGone() {
        try (WeightsSide target = side("host", "shm", "")) {
            for (long round = 1; round < 4; round++) {
                try (WeightsSide sender = side("sender", "shm", "")) {
                    attach(target, sender, "t" + round);
                    sender.send(round, round, "t" + round);
                }
                String event = target.next();
                while (!event.startsWith("ended t" + round)) {
                    assertThat(event).startsWith("landed " + round);
                    event = target.next();
                }
            }
            target.awaitClean();
        }
    }

    @Test
    void shouldKeepWhatHasLandedForASenderThatIsThere() {
        try (WeightsSide target = side("host", "tcp", "");
                WeightsSide first = side("sender", "tcp", "")) {
            attach(target, first, "one");
            try (WeightsSide second = side("sender", "tcp", "")) {
                attach(target, second, "two");
                first.send(1, 5, "one");
                assertThat(first.next()).isEqualTo("landed one 1");
                assertThat(target.next()).isEqualTo("landed 1 5");
                second.send(2, 6, "two");
                assertThat(second.next())
                        .startsWith("refused two 2 version 5 of ")
                        .contains("is on its way");
                first.send(3, 6, "one");
                assertThat(first.next()).isEqualTo("landed one 3");
                assertThat(target.next()).isEqualTo("landed 3 6");
                load(target, first, 3);
                second.send(4, 7, "two");
                assertThat(second.next()).isEqualTo("landed two 4");
                assertThat(target.next()).isEqualTo("landed 4 7");
            }
            assertThat(target.next()).startsWith("ended two");
            first.send(5, 7, "one");
            assertThat(first.next()).isEqualTo("landed one 5");
            assertThat(target.next()).isEqualTo("landed 5 7");
            load(target, first, 5);
        }
    }

    /** Each sender counts its versions, as trainers do, one of them from the start again. */
    @Test
    void shouldNameWhatHasLandedByItsBytesAlone() {
        try (WeightsSide target = side("host", "tcp", "");
                WeightsSide other = side("host", "tcp", "");
                WeightsSide trainer = side("sender", "tcp", "");
                WeightsSide another = side("sender", "tcp", "")) {
            attach(target, trainer, "one");
            attach(other, another, "two");
            fill(trainer.bytes(), 1);
            fill(another.bytes(), 2);
            String first = digestOf(1, 5, trainer, target, "one");
            assertThat(first).hasSize(64).isNotEqualTo(digestOf(2, 5, another, other, "two"));
            fill(another.bytes(), 1);
            assertThat(digestOf(3, 9, another, other, "two")).isEqualTo(first);
        }
    }

    private static String digestOf(long updateId, long version, WeightsSide sender, WeightsSide target, String ticket) {
        sender.send(updateId, version, ticket);
        assertThat(sender.next()).startsWith("landed ").endsWith(" " + updateId);
        assertThat(target.next()).isEqualTo("landed " + updateId + " " + version);
        String digest = target.digest();
        load(target, sender, updateId);
        return digest;
    }

    @Test
    void shouldRefuseOtherTensors() {
        try (WeightsSide sender = side("sender", "tcp", "");
                WeightsSide target = new WeightsSide(host, "host", "cd".repeat(32), LENGTH_BYTES, options("tcp", ""))) {
            target.dial(sender, "one", "");
            assertThat(sender.next()).startsWith("lost  ").contains("the manifest's digest is");
            assertThat(target.next())
                    .startsWith("ended one ")
                    .contains("is cdcdcdcdcdcdcdcd", "expected abababababababab");
        }
    }

    @Test
    void shouldNotifyASenderWhyAHostTakesNothing() {
        try (WeightsSide sender = side("sender", "tcp", "");
                WeightsSide target = side("host", "tcp", "")) {
            target.dial(sender, "one", "this server has another model");
            assertThat(sender.next()).isEqualTo("refused one 0 this server has another model");
            assertThat(target.next()).startsWith("ended one ").contains("takes no weights of this sender");
        }
    }

    private static void attach(WeightsSide target, WeightsSide sender, String ticket) {
        target.dial(sender, ticket, "");
        assertThat(sender.next()).isEqualTo("attached " + ticket);
    }

    private WeightsSide side(String side, String transport, String secret) {
        return new WeightsSide(host, side, MANIFEST, LENGTH_BYTES, options(transport, secret));
    }

    private static Map<String, Object> options(String transport, String secret) {
        return Map.of("transports", List.of(transport), "sharedSecret", secret);
    }

    private static void fill(MemorySegment bytes, long seed) {
        byte[] random = new byte[(int) bytes.byteSize()];
        new SplittableRandom(seed).nextBytes(random);
        MemorySegment.copy(random, 0, bytes, ValueLayout.JAVA_BYTE, 0, random.length);
    }
}
