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

    /** The only slot of a table, at which something happens after a worker has looked. */
    private static final class OneSlot extends ImmCounters {
        Runnable afterLook = () -> {};

        OneSlot() {
            super(2, Imm.GENERATION_COUNT);
        }

        @Override
        boolean isOpen(int imm) {
            boolean open = super.isOpen(imm);
            Runnable next = afterLook;
            afterLook = () -> {};
            next.run();
            return open;
        }
    }

    private Window open(WindowTable in) {
        WindowArea area = WindowArea.of(region.descriptor(), WindowRanges.ofEqual(new long[] {0}, LENGTH_BYTES));
        return in.open(admission, List.of(region), area, 1, 7);
    }

    /** A late write of one request would be checked against the pages of the next, and counted there. */
    @Test
    void shouldNotFindTheNextWindowOfASlotThatIsReopenedBetweenTheTwoLooks() {
        OneSlot counters = new OneSlot();
        WindowTable one = new WindowTable(counters, 2, released::add);
        Window window = open(one);
        Window[] next = new Window[1];
        counters.afterLook = () -> {
            window.close(true);
            next[0] = open(one);
        };
        assertThat(one.find(window.imm())).isNull();
        assertThat(Imm.slot(next[0].imm())).isEqualTo(Imm.slot(window.imm()));
        assertThat(one.find(next[0].imm())).isSameAs(next[0]);
    }

    /** Its pages would be overwritten after they were given to another request. */
    @Test
    void shouldShowThatItLandsBeforeItLooksWhetherTheWindowIsOpen() {
        OneSlot counters = new OneSlot();
        WindowTable one = new WindowTable(counters, 2, released::add);
        Window window = open(one);
        counters.afterLook = () -> window.close(true);
        window.beginLanding();
        assertThat(released).as("the close did not see what was about to land").containsExactly(window);
    }

    /** After 4,095 of them no prompt would ever be received again. */
    @Test
    void shouldGiveEachSlotAndEachHoldBackWhateverTheOrderOfItsEnds() {
        WindowTable one = new WindowTable(new OneSlot(), 2, released::add);
        for (int round = 0; round < 100; round++) {
            Window window = open(one);
            assertThat(window).as("round %d", round).isNotNull();
            switch (round % 4) {
                case 0 -> window.close(true);
                case 1 -> {
                    window.close(false);
                    assertThat(one.openCount()).as("nothing proves its end").isEqualTo(1);
                    assertThat(open(one)).isNull();
                    one.onAdmissionClosed(admission);
                }
                case 2 -> {
                    one.onAdmissionClosed(admission);
                    window.close(false);
                }
                default -> {
                    one.onAdmissionClosed(admission);
                    window.close(true);
                    window.close(false);
                    one.onAdmissionClosed(admission);
                }
            }
            assertThat(one.openCount()).isZero();
        }
        region.deregister(); // throws while a window holds it
    }

    @Test
    void shouldKeepTheWindowsOfOtherAdmissions() {
        Window window = open();
        window.close(false);
        table.onAdmissionClosed(new Admission(2, "other", new byte[Admission.KEY_LENGTH_BYTES]));
        assertThat(table.openCount()).isEqualTo(1);
    }
}
