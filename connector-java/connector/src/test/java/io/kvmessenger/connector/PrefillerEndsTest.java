package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.connector.DepartingPrefiller.Ending;
import java.io.IOException;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Prefillers that end when a write has just left. No request fails whose pages had all left; any other one arrives too,
 * or fails and says why. Meanwhile the decoder's cores are busy, and it stands still again and again: one whose messenger moves the bytes
 * itself, and one with a thread for them.
 */
@Timeout(2400)
class PrefillerEndsTest {
    /** Orderly ends over each transport. */
    private static final int ORDERLY = Integer.getInteger("kvmessenger.orderlyEnds", 6);
    /** Killed prefillers over each transport. */
    private static final int KILLED = Integer.getInteger("kvmessenger.killedEnds", 4);

    private final Count count = new Count();

    /** What has happened in a test. */
    private static final class Count {
        int ends;
        int standing;
        int left;
        int leftAndArrived;
        int otherArrived;
        int otherFailed;

        @Override
        public String toString() {
            return ends + " prefillers ended, the decoder stood still at " + standing + " of the ends; requests that"
                    + " had all left: " + left + ", arrived: " + leftAndArrived + "; of the others arrived "
                    + otherArrived + ", failed for a reason " + otherFailed;
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"shm", "tcp"})
    void shouldLoseNothingThatHadLeftAPrefillerThatEndsInGoodOrder(String transport) throws Exception {
        endAll(transport, Ending.IN_ORDER, ORDERLY);
    }

    @ParameterizedTest
    @ValueSource(strings = {"shm", "tcp"})
    void shouldLoseNothingThatHadLeftAPrefillerThatIsKilled(String transport) throws Exception {
        endAll(transport, Ending.KILLED, KILLED);
    }

    private void endAll(String transport, Ending ending, int ends) throws Exception {
        long beganNs = System.nanoTime();
        DepartingPrefiller next = start(transport, ending, 0);
        try (ThrottledDecoder small = new ThrottledDecoder(transport, 2);
                ThrottledDecoder large = new ThrottledDecoder(transport, 4)) {
            for (int end = 0; end < ends; end++) {
                try (DepartingPrefiller prefiller = next) {
                    next = start(transport, ending, end + 1); // it takes its time meanwhile
                    ThrottledDecoder decoder = end / 2 % 2 == 0 ? large : small;
                    count.standing += decoder.fetchWhileThrottled(prefiller) ? 1 : 0;
                    assertThat(prefiller.process.waitFor()).as(prefiller.round).isEqualTo(ending.exitStatus);
                    judge(prefiller, decoder);
                }
                count.ends++;
            }
            small.awaitRest();
            large.awaitRest();
        } finally {
            next.close();
        }
        long seconds = (System.nanoTime() - beganNs) / 1_000_000_000;
        System.out.println(transport + ", " + ending + ": " + count + "; " + seconds + " s");
        assertThat(count.leftAndArrived).as(count.toString()).isEqualTo(count.left);
    }

    /** Every second one ends when all has left, the others when one prompt has, or two, ... */
    private static DepartingPrefiller start(String transport, Ending ending, int end) throws IOException {
        int leftBefore = end % 2 == 0 ? DepartingPrefiller.PROMPTS : 1 + end / 2 % DepartingPrefiller.PROMPTS;
        return new DepartingPrefiller(transport, transport + "-" + ending + "-" + end, ending, leftBefore);
    }

    private void judge(DepartingPrefiller prefiller, ThrottledDecoder decoder) throws IOException {
        boolean[] left = prefiller.left();
        for (int prompt = 0; prompt <= DepartingPrefiller.PROMPTS; prompt++) {
            String end = decoder.end();
            String what = prefiller.round + ", prompt " + prompt + ": " + end;
            boolean arrived = ThrottledDecoder.arrived(end);
            assertThat(arrived || ThrottledDecoder.failedForAReason(end))
                    .as(what)
                    .isTrue();
            if (left[prompt]) {
                count.left++;
                count.leftAndArrived += arrived ? 1 : 0;
                if (!arrived) {
                    System.out.println("lost although it had left: " + what);
                }
            } else if (arrived) {
                assertThat(prompt).as(what).isLessThan(DepartingPrefiller.PROMPTS); // the last one is never whole
                count.otherArrived++;
            } else {
                count.otherFailed++;
            }
        }
    }
}
