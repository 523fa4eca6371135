package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.LongestPage;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.staging.StagingLimits;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Device memory that is gathered: a page longer than the long slab was copied past the end of the pinned memory. */
@Timeout(900)
final class StagedLongestPageTest {
    private static final long PAGE_MAX_BYTES = StagingLimits.STANDARD.pageMaxBytes();

    @BeforeEach
    void hurry() {
        StandInCuda.load().delay(0);
    }

    private static void check(TransferOptions options, boolean toDevice) {
        long memoryBytes = LongestPage.memoryBytes(PAGE_MAX_BYTES);
        try (DrivenEngine owner = StagedMemory.open(options, memoryBytes);
                DrivenEngine other = toDevice
                        ? StagedMemory.open(options, memoryBytes)
                        : new DrivenEngine(options, "target", memoryBytes)) {
            StandInCuda.load().delay(0);
            LongestPage.check(
                    owner,
                    other,
                    options.get(TransferOptions.TRANSPORTS).getFirst(),
                    PAGE_MAX_BYTES,
                    StagingLimits.STANDARD.slabBytes());
        }
    }

    @Test
    void shouldMoveUpToTheLongSlabOverTcp() {
        check(TransferOptions.defaults().withTransports(TransferOptions.TCP), true);
    }

    @Test
    void shouldMoveUpToTheLongSlabOverShm() {
        check(TransferOptions.defaults().withTransports(TransferOptions.SHM, TransferOptions.TCP), false);
    }

    @Test
    void shouldMoveUpToTheLongSlabOverLibfabric() {
        InstalledFabric.assume();
        check(InstalledFabric.byTcp(TransferOptions.defaults()), false);
    }

    /** Its slabs are shorter than most of these pages, which go in parts. */
    @Test
    void shouldMoveUpToTheLongSlabIntoSlabsOverLibfabric() {
        InstalledFabric.assume();
        check(InstalledFabric.byTcp(TransferOptions.defaults()), true);
    }
}
