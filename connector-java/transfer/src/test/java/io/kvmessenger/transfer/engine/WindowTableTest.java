package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** The steps of both threads in the orders that matter, taken by one. */
final class WindowTableTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long LENGTH_BYTES = 4096;

    private final Admission admission = new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]);
    private final RegisteredRegion region =
            new RegionTable(LIB_C).add(Memory.host(Arena.ofAuto().allocate(LENGTH_BYTES)));
    private final List<OpenWindow> released = new ArrayList<>();
    private final WindowTable table = new WindowTable(EngineLimits.of(TransferOptions.defaults()), released::add);

    private Window open() {
        WindowArea area = WindowArea.of(region.descriptor(), WindowRanges.ofEqual(new long[] {0}, LENGTH_BYTES));
        return table.open(admission, List.of(region), area, 1, 7);
    }

    @Test
    void shouldLetNothingBeginToLandInAWindowClosedSinceItWasFound() {
        Window window = open();
        OpenWindow found = table.find(window.imm());
        window.close(true);
        assertThat(found.beginLanding()).isFalse();
        assertThat(window.isLanding()).isFalse();
        assertThat(released).as("nothing was landing when it was closed").isEmpty();
    }

    @Test
    void shouldLetNothingBeginToLandInTheNextUseOfTheSlot() {
        Window window = open();
        OpenWindow found = table.find(window.imm());
        window.close(true);
        Window again;
        do {
            again = open();
        } while (Imm.slot(again.imm()) != Imm.slot(window.imm()));
        assertThat(found.beginLanding()).isFalse();
        assertThat(table.find(window.imm())).isNull();
        assertThat(again.beginLanding()).isTrue();
    }

    @Test
    void shouldAskForWhatIsLandingWhenItIsClosed() {
        Window window = open();
        assertThat(table.find(window.imm()).beginLanding()).isTrue();
        window.close(true);
        assertThat(released).containsExactly(window);
        assertThat(window.isLanding()).isTrue();
        window.endLanding();
        assertThat(window.isLanding()).isFalse();
    }
}
