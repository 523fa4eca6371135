package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import org.junit.jupiter.api.Test;

final class AllowancesTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final WindowArea AREA = WindowArea.of(
            new RegionDescriptor(1, 64, RegionDescriptor.VERSION, true), WindowRanges.ofEqual(new long[] {0}, 64));

    private final Allowances allowances = new Allowances(new RegionTable(LIB_C));

    private boolean allowed(int imm) {
        return allowances.refusal(new ImmOnly(Imm.withWeight(imm, 1))) == null;
    }

    @Test
    void shouldAllowEachSlotByItself() {
        for (int slot = 1; slot < Imm.SLOT_COUNT_MAX; slot++) {
            assertThat(allowed(Imm.of(slot, 3))).isFalse();
            allowances.allow(Imm.of(slot, 3), AREA);
            assertThat(allowed(Imm.of(slot, 3))).isTrue();
        }
        for (int slot = 1; slot < Imm.SLOT_COUNT_MAX; slot++) {
            assertThat(allowed(Imm.of(slot, 3))).as("slot %d", slot).isTrue();
            allowances.disallow(Imm.of(slot, 3));
            assertThat(allowed(Imm.of(slot, 3))).isFalse();
        }
    }

    @Test
    void shouldRefuseAWriteThatNothingWouldCount() {
        allowances.allow(Imm.of(1, 0), AREA);
        assertThat(allowances.refusal(new ImmOnly(Imm.of(1, 0)))).contains("has no weight");
    }

    @Test
    void shouldKnowOneGenerationOfASlot() {
        allowances.allow(Imm.of(5, 1), AREA);
        allowances.allow(Imm.of(5, 2), AREA);
        assertThat(allowed(Imm.of(5, 1))).isFalse();
        allowances.disallow(Imm.of(5, 1));
        assertThat(allowed(Imm.of(5, 2))).isTrue();
        allowances.disallow(Imm.of(5, 2));
        allowances.disallow(Imm.of(5, 2));
        allowances.allow(Imm.of(6, 0), AREA);
        assertThat(allowed(Imm.of(6, 0))).isTrue();
    }
}
