package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.ReadRequest;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * An owner that answers each part of a read as it likes, and writes any number of pages before: the read ends once, and
 * with what the sum of both says.
 */
final class ReadsTest {
    private static final int PAGE_BYTES = 2 << 20;
    private static final int PAGES_PER_PART = 2;
    private static final long COOKIE = 11;

    /**
     * What the owner does.
     *
     * @param written pages before its answers
     * @param outcomes of the parts, in the order of its answers
     */
    private record Case(int parts, int written, int... outcomes) {
        int refused() {
            return (int) IntStream.of(outcomes)
                    .filter(outcome -> outcome != ReadAnswer.SENT)
                    .count();
        }

        /** That of the first answer with which the window is full, or more than full. */
        TransferFault fault() {
            int expected = parts * PAGES_PER_PART;
            int sum = written;
            for (int outcome : outcomes) {
                sum += outcome == ReadAnswer.SENT ? 0 : PAGES_PER_PART;
                if (sum >= expected && outcome != ReadAnswer.SENT) {
                    return sum > expected ? TransferFault.PROTOCOL : TransferFault.READ_REFUSED;
                }
            }
            return TransferFault.READ_REFUSED;
        }

        @Override
        public String toString() {
            return parts + " parts, " + written + " pages written, answers " + Arrays.toString(outcomes);
        }
    }

    static Stream<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (int parts = 1; parts <= 3; parts++) {
            int all = parts;
            for (int refused = 1; refused < 1 << parts; refused++) {
                int mask = refused;
                int[] outcomes = IntStream.range(0, all)
                        .map(part -> (mask >> part & 1) == 0 ? ReadAnswer.SENT : 1 + part % 3)
                        .toArray();
                int right = (all - Integer.bitCount(mask)) * PAGES_PER_PART;
                for (int written = Math.max(0, right - 1); written <= all * PAGES_PER_PART; written++) {
                    cases.add(new Case(all, written, outcomes));
                }
            }
        }
        return cases.stream();
    }

    private final WindowTable windows = new WindowTable(EngineLimits.of(TransferOptions.defaults()), window -> {});
    private final Reads reads = new Reads(windows.counters());
    private final RegionTable regions = new RegionTable(new FfmLibC());
    private final InboundAdmission owner =
            new InboundAdmission(new Admission(1, "owner", new byte[Admission.KEY_LENGTH_BYTES]));
    private final List<String> ends = new ArrayList<>();
    private final CompletionHandler handler = (CompletionHandler) Proxy.newProxyInstance(
            CompletionHandler.class.getClassLoader(),
            new Class<?>[] {CompletionHandler.class},
            (proxy, method, arguments) -> {
                ends.add(method.getName() + (arguments.length > 1 ? " " + arguments[1] : ""));
                return null;
            });

    private Window begin(int parts) {
        int pages = parts * PAGES_PER_PART;
        RegisteredRegion region = regions.add(Memory.host(Arena.ofAuto().allocate((long) pages * PAGE_BYTES)));
        int[] indices = IntStream.range(0, pages).toArray();
        PageList list = new PageList(indices, 0, pages, PAGE_BYTES, 0);
        ReadRequest request = new ReadRequest(new ReadKey(1, 2), region.descriptor(), list, region, list, PAGE_BYTES);
        Window window = windows.open(owner.admission(), List.of(region), Reads.areaOf(request, regions), pages, COOKIE);
        reads.begin(request, owner, window, COOKIE);
        return window;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldEndOnce(Case given) {
        Window window = begin(given.parts);
        long counted = given.written;
        boolean seenByWorker = counted > 0 && windows.counters().arrive(window.imm, counted) == ImmCounters.FILLED;
        for (int part = 0; part < given.parts; part++) {
            reads.onAnswer(handler, owner.admission(), new ReadAnswer(window.imm, part, given.outcomes[part]));
        }
        if (seenByWorker) {
            reads.onFilled(handler, window); // as its completion, behind the answers
        }
        long sum = given.written + (long) given.refused() * PAGES_PER_PART;
        int expected = given.parts * PAGES_PER_PART;
        if (sum < expected) {
            assertThat(ends).as("pages are still to come").isEmpty();
            assertThat(windows.counters().arrive(window.imm, expected - sum)).isEqualTo(ImmCounters.FILLED);
            assertThat(reads.onFilled(handler, window)).isTrue();
        }
        assertThat(ends).containsExactly("onReadFailed " + given.fault());
        assertThat(reads.openParts()).isZero();
        assertThat(reads.hasRoom(owner.admission())).isTrue();
    }
}
