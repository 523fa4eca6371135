package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

final class AllowancesTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final WindowArea AREA = WindowArea.of(
            new RegionDescriptor(1, 64, RegionDescriptor.VERSION, true), WindowRanges.ofEqual(new long[] {0}, 64));

    private final Allowances allowances = new Allowances(new RegionTable(LIB_C));

    private boolean allowed(RemoteWindow window) {
        return allowances.refusal(new ImmOnly(window, 1)) == null;
    }

    @Test
    void shouldAllowEachSlotByItself() {
        List<RemoteWindow> windows = new ArrayList<>();
        for (int slot = 1; slot < Imm.SLOT_COUNT_MAX; slot++) {
            windows.add(allowances.allow(Imm.of(slot, 3), AREA, TrafficClass.URGENT));
        }
        for (int i = 0; i < windows.size(); i++) {
            assertThat(allowed(windows.get(i))).as("window %d", i).isTrue();
            allowances.disallow(windows.get(i));
            assertThat(allowed(windows.get(i))).as("window %d", i).isFalse();
        }
    }

    @Test
    void shouldRefuseAWriteThatNothingWouldCount() {
        RemoteWindow window = allowances.allow(Imm.of(1, 0), AREA, TrafficClass.URGENT);
        assertThat(allowances.refusal(new ImmOnly(window, 0))).contains("has weight 0", "give it 1 to 4095");
        assertThat(allowances.refusal(new ImmOnly(window, Imm.WEIGHT_MAX + 1))).contains("has weight 4096");
    }

    /** Its number is right, and it is not what {@code allow} returned: neither here nor at the engine of another peer. */
    @Test
    void shouldKnowAWindowByItselfAndNotByItsNumber() {
        int imm = Imm.of(7, 1);
        RemoteWindow window = allowances.allow(imm, AREA, TrafficClass.URGENT);
        RemoteWindow ofAnother = new Allowances(new RegionTable(LIB_C)).allow(imm, AREA, TrafficClass.URGENT);
        assertThat(allowed(() -> imm)).isFalse();
        assertThat(allowed(ofAnother)).isFalse();
        allowances.disallow(ofAnother);
        assertThat(allowed(window)).isTrue();
    }

    @Test
    void shouldAllowOneGenerationOfASlot() {
        RemoteWindow first = allowances.allow(Imm.of(5, 1), AREA, TrafficClass.URGENT);
        RemoteWindow second = allowances.allow(Imm.of(5, 2), AREA, TrafficClass.URGENT);
        assertThat(allowed(first)).isFalse();
        allowances.disallow(first);
        assertThat(allowed(second)).isTrue();
        allowances.disallow(second);
        allowances.disallow(second);
        assertThat(allowed(second)).isFalse();
    }

    /** After all generations have passed the number is the same, and the window another. */
    @Test
    void shouldDistinguishTwoWindowsOfOneNumber() {
        RemoteWindow first = allowances.allow(Imm.of(5, 1), AREA, TrafficClass.URGENT);
        RemoteWindow second = allowances.allow(Imm.of(5, 1), AREA, TrafficClass.URGENT);
        assertThat(allowed(first)).isFalse();
        allowances.disallow(first);
        assertThat(allowed(second)).isTrue();
    }
}
