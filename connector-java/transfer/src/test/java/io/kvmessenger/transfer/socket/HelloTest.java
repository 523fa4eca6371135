package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Test;

final class HelloTest {
    private static final byte[] KEY = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
    private static final String LOCATION = "127.0.0.1:4711";

    private final Random random = new Random(1);
    private final Challenge challenge = Challenge.fresh(random);
    private final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    private final FakePort port = new FakePort(admission, MemorySegment.ofArray(new byte[8]), Imm.of(1, 0), 8);

    private static byte[] encoded(Hello hello) {
        byte[] bytes = new byte[Hello.LENGTH_BYTES];
        hello.encode(MemorySegment.ofArray(bytes));
        return bytes;
    }

    private Hello hello(byte[] key) {
        return Hello.answer(challenge, LOCATION, 1, 2, key);
    }

    @Test
    void shouldAdmitWhoAnswersWithTheKey() {
        Hello parsed = Hello.parse(MemorySegment.ofArray(encoded(hello(KEY))));
        assertThat(parsed.role()).isEqualTo(1);
        assertThat(parsed.count()).isEqualTo(2);
        assertThat(parsed.admissionAt(port, challenge, LOCATION)).isSameAs(admission);
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
        Hello otherRole = new Hello(Hello.VERSION, 2, 2, right.keyName(), right.proof());
        Hello otherCount = new Hello(Hello.VERSION, 1, 1, right.keyName(), right.proof());
        Hello unproven = new Hello(Hello.VERSION, 1, 2, right.keyName(), new byte[right.proof().length]);
        assertThat(otherRole.admissionAt(port, challenge, LOCATION)).isNull();
        assertThat(otherCount.admissionAt(port, challenge, LOCATION)).isNull();
        assertThat(unproven.admissionAt(port, challenge, LOCATION)).isNull();
    }

    @Test
    void shouldNotAdmitAnotherKey() {
        byte[] other = KEY.clone();
        other[0]++;
        assertThat(hello(other).admissionAt(port, challenge, LOCATION)).isNull();
    }
}
