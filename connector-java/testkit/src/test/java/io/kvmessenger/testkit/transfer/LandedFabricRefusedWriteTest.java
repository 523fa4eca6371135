package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.device.StandInMemories;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Each frame for a device's memory in turn is refused for good, also one that is a part of a page: that ends the path at once. */
@Timeout(900)
@ExtendWith(SlowCopies.class)
final class LandedFabricRefusedWriteTest extends WriterAndTarget {
    private static final int EIO = 5;
    /** Slabs of 64 KiB; a long page needs several. */
    private static final int SLAB_KIB = 64;

    private static final int LONG_PAGE_BYTES = 5 * (SLAB_KIB << 10);
    private static final int FRAMES_MIN = 4;
    private static final int[] ALL = IntStream.range(0, PAGE_COUNT).toArray();

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final FaultyProvider provider = new FaultyProvider(seed);

    private record Case(int skipped, boolean isLong) {}

    static Stream<Case> cases() {
        return IntStream.range(0, FRAMES_MIN)
                .boxed()
                .flatMap(skipped -> Stream.of(new Case(skipped, false), new Case(skipped, true)));
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.LANDING_SLAB_KIB, SLAB_KIB);
    }

    @Override
    protected DrivenEngine open(String name) {
        return new DrivenEngine(
                options(),
                new StandInMemories().allocate(MEMORY_BYTES),
                TransferEngines.open(
                        options(), new FfmLibC(), provider::library, new DriverAccess(StandInCuda.library())));
    }

    @Override
    @AfterEach
    void close() {
        super.close();
        assertThat(provider.violations()).as("seed %d", seed).isEmpty();
        assertThat(provider.held()).as("seed %d", seed).isEmpty();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldEndThePath(Case given) {
        fillSource(new Random(seed));
        var window = grant(everything(), given.isLong ? 1 : PAGE_COUNT, 1);
        provider.refuse("writedata", EIO, given.skipped, 1);
        writer.submit(peer, given.isLong ? single(remote(window), 0, 0, LONG_PAGE_BYTES) : paged(window, ALL, ALL), 1);
        writer.await("the end of the write", () -> writer.endings.containsKey(1L));
        assertThat(provider.hasRefused()).isTrue();
        assertThat(writer.failed.get(1L)).isNotNull();
        assertThat(writer.failed.get(1L).fault()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(writer.failed.get(1L).detail()).contains("as it was told to");
    }
}
