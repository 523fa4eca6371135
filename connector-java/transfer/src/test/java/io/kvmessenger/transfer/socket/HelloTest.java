package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Random;
import org.junit.jupiter.api.Test;

final class HelloTest {
    private static final byte[] KEY = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
    private static final String LOCATION = "127.0.0.1:4711";

    /** Computed apart from this code, by the rule of version 4. */
    private static final String KEY_NAME = "e6db990f397ea4dfb3b84f383b9007ac";

    private static final String PROOF_OF_SEVENS = "767e31084b518e081855c9f9d2a5e52615cff36d4bc639228064a15779d91ed5";

    private static final byte[] NONCE = "the nonce of a writer, 32 bytes.".getBytes(StandardCharsets.US_ASCII);

    private final Random random = new Random(1);
    private final Challenge challenge = Challenge.fresh(random);
    private final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    private final FakePort port = new FakePort(admission, MemorySegment.ofArray(new byte[8]), Imm.of(1, 0), 8);

    private static byte[] encoded(Hello hello) {
        byte[] bytes = new byte[hello.lengthBytes()];
        hello.encode(MemorySegment.ofArray(bytes));
        return bytes;
    }

    private Hello hello(byte[] key) {
        return Hello.answer(challenge, LOCATION, 1, 2, key, NONCE);
    }

    @Test
    void shouldAdmitWhoAnswersWithTheKey() {
        Hello parsed = Hello.parse(MemorySegment.ofArray(encoded(hello(KEY))));
        assertThat(parsed.role()).isEqualTo(1);
        assertThat(parsed.count()).isEqualTo(2);
        assertThat(parsed.admissionAt(port, challenge, LOCATION)).isSameAs(admission);
    }

    @Test
    void shouldCarryANonceToEnginesThatKnowOne() {
        Hello parsed = Hello.parse(MemorySegment.ofArray(encoded(hello(KEY))));
        assertThat(parsed.nonce()).isEqualTo(NONCE);
        assertThat(parsed.givesHeartbeats()).isTrue();
    }

    @Test
    void shouldNotCarryTheKey() {
        String wire = new String(encoded(hello(KEY)), StandardCharsets.ISO_8859_1);
        assertThat(wire).doesNotContain(new String(KEY, 0, 4, StandardCharsets.ISO_8859_1));
    }

    @Test
    void shouldNotAdmitAnAnswerToAnotherChallengeOrAtAnotherTarget() {
        Hello recorded = hello(KEY);
        assertThat(recorded.admissionAt(port, Challenge.fresh(random), LOCATION))
                .isNull();
        assertThat(recorded.admissionAt(port, challenge, "127.0.0.1:4712")).isNull();
    }

    @Test
    void shouldNotAdmitAnAnswerThatWasChanged() {
        Hello right = hello(KEY);
        Hello otherRole = new Hello(Hello.VERSION, 2, 2, right.keyName(), right.proof(), NONCE);
        Hello otherCount = new Hello(Hello.VERSION, 1, 1, right.keyName(), right.proof(), NONCE);
        byte[] another = NONCE.clone();
        another[31]++;
        Hello otherNonce = new Hello(Hello.VERSION, 1, 2, right.keyName(), right.proof(), another);
        assertThat(otherNonce.admissionAt(port, challenge, LOCATION)).isNull();
        Hello unproven = new Hello(Hello.VERSION, 1, 2, right.keyName(), new byte[right.proof().length], NONCE);
        assertThat(otherRole.admissionAt(port, challenge, LOCATION)).isNull();
        assertThat(otherCount.admissionAt(port, challenge, LOCATION)).isNull();
        assertThat(unproven.admissionAt(port, challenge, LOCATION)).isNull();
    }

    /** What an engine of version 4 has said, byte for byte, when there was no other. */
    @Test
    void shouldMeetAnEngineThatKnowsOneVersion() {
        byte[] asked = HexFormat.of().parseHex("4b564d5343484c31" + "04000000" + "00000000" + "07".repeat(32));
        Challenge challenge = Challenge.parse(MemorySegment.ofArray(asked));
        assertThat(Hello.speaks(challenge.version(), challenge.newestVersion())).isTrue();

        Hello answer = Hello.answer(challenge, LOCATION, Hello.CONTROL, 0, KEY, NONCE);
        String given =
                "4b564d5350544831" + "04000000" + "00000000" + KEY_NAME + "00000000" + "00000000" + PROOF_OF_SEVENS;
        assertThat(HexFormat.of().formatHex(encoded(answer))).isEqualTo(given);
        assertThat(answer.admissionAt(port, challenge, LOCATION)).isSameAs(admission);
        assertThat(answer.givesHeartbeats()).isFalse();
    }

    @Test
    void shouldAnswerInTheNewestVersionOfBoth() {
        Challenge later = Challenge.parse(MemorySegment.ofArray(
                HexFormat.of().parseHex("4b564d5343484c31" + "05000000" + "06000000" + "07".repeat(32))));
        assertThat(later.newestVersion()).isEqualTo(6);
        assertThat(Hello.speaks(later.version(), later.newestVersion())).isTrue();
        assertThat(Hello.answer(later, LOCATION, Hello.CONTROL, 0, KEY, NONCE).version())
                .isEqualTo(Hello.VERSION);
    }

    @Test
    void shouldSayWhichVersionsAreSpoken() {
        assertThat(Hello.speaks(Hello.VERSION + 1, Hello.VERSION + 2)).isFalse();
        assertThat(Hello.speaks(Hello.OLDEST_VERSION - 2, Hello.OLDEST_VERSION - 1))
                .isFalse();
        assertThat(Hello.versionFault(6, 7))
                .isEqualTo(
                        "the peer speaks version 6 to 7 on its data paths, this engine 4 to 5: install the same release on both"
                                + " sides, or two that follow each other");
    }

    @Test
    void shouldNotAdmitAnotherKey() {
        byte[] other = KEY.clone();
        other[0]++;
        assertThat(hello(other).admissionAt(port, challenge, LOCATION)).isNull();
    }
}
