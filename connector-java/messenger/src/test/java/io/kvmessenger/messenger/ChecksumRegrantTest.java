package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A prompt is preempted when its pages are here, and some of them are compared. What is computed and sent again is
 * compared from its first write to its last, whatever was compared of the earlier attempt.
 */
class ChecksumRegrantTest extends ComparingPair {
    private static final int LAYERS = 2;
    private static final int PASSES = 2;
    /** No byte of what is sent again changes on its way. */
    private static final int NONE = -1;

    /** How many writes were compared before, in how many passes the prompt is computed again, which write is damaged. */
    static List<Arguments> attempts() {
        List<Arguments> all = new ArrayList<>();
        for (int compared = 0; compared < PASSES * LAYERS; compared++) {
            for (int passes = 1; passes <= PASSES; passes++) {
                for (int damaged = NONE; damaged < passes * LAYERS; damaged++) {
                    all.add(Arguments.of(compared, passes, damaged));
                }
            }
        }
        return all;
    }

    @ParameterizedTest
    @MethodSource("attempts")
    void shouldCompareAllThatIsSentAgainAndNothingElse(int compared, int passes, int damaged) {
        fetch("r", 1, 0);
        carry();
        compute(PASSES);
        sumSome(compared);
        fill();
        assertThat(decoder.reported).isEmpty(); // it waits for the checksums of the rest
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        completeAllWrites();
        carry();
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isEqualTo(1);
        prefiller.transfer.requests.clear();

        compute(passes);
        if (damaged != NONE) {
            damage((PagedWrites) prefiller.transfer.requests.get(damaged));
        }
        completeAllWrites();
        fill();
        carry();
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly(damaged == NONE ? "arrived r" : "failed r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    /** Computes the prompt in passes; what is sent of it lands. */
    private void compute(int passes) {
        int tokens = PROMPT_TOKENS / passes;
        for (int pass = 0; pass < passes; pass++) {
            int from = pass * tokens;
            int firstPage = from / Geometries.PAGE_TOKENS;
            int[] pages = passes == 1 ? new int[] {5, 6} : new int[] {3 + firstPage};
            beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, from, from + tokens, firstPage, pages));
            endStep();
            prefiller.messenger.doWork();
        }
        assertThat(prefiller.transfer.requests).hasSize(passes * LAYERS);
        for (TransferRequest request : prefiller.transfer.requests) {
            land((PagedWrites) request);
        }
    }

    /** The decoder gets the checksums of the first writes, as of a prompt with hundreds of them. */
    private void sumSome(int count) {
        Checksums all = checksumsOfSubmitted(FIRST_GRANT).getChecksums();
        Checksums.Builder some = Checksums.newBuilder()
                .setGrantId(FIRST_GRANT)
                .addAllWrites(all.getWritesList().subList(0, count));
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK, ControlFrame.newBuilder().setChecksums(some).build());
    }

    private void damage(PagedWrites write) {
        MemorySegment kv = decoder.region.hostBytes();
        long at = write.targetPages().offsetOf(0);
        kv.set(ValueLayout.JAVA_BYTE, at, (byte) (kv.get(ValueLayout.JAVA_BYTE, at) ^ 4));
    }
}
