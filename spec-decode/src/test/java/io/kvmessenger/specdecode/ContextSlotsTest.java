package io.kvmessenger.specdecode;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.specdecode.ContextKind.Sending;
import org.junit.jupiter.api.Test;

class ContextSlotsTest {
    private static final ContextKind KIND = new ContextKind("state", 40, Sending.ALWAYS);

    @Test
    void shouldPlaceEachSlotAStrideBehindTheOneBefore() {
        ContextSlots slots = new ContextSlots(KIND, 100, 3);
        assertThat(slots.offsetBytes(0)).isZero();
        assertThat(slots.offsetBytes(2)).isEqualTo(200);
        assertThat(new ContextSlots(KIND, 1L << 33, 3).offsetBytes(2)).isEqualTo(1L << 34);
        assertThat(slots.has(2)).isTrue();
        assertThat(slots.has(3)).isFalse();
        assertThat(slots.has(ContextSlots.NO_SLOT)).isFalse();
    }

    @Test
    void shouldFitWhereTheLastRowEnds() {
        ContextSlots slots = new ContextSlots(KIND, 100, 3);
        assertThat(slots.fitIn(240)).isTrue();
        assertThat(slots.fitIn(239)).isFalse();
        assertThat(slots.fitIn(-1)).isFalse();
        assertThat(new ContextSlots(KIND, Long.MAX_VALUE, Integer.MAX_VALUE).fitIn(Long.MAX_VALUE))
                .isFalse();
        assertThat(new ContextSlots(KIND, 1L << 62, 3).fitIn(Long.MAX_VALUE)).isFalse();
    }

    @Test
    void shouldHaveAsManySlotsAsAMemoryHasStrides() {
        assertThat(ContextSlots.in(KIND, 100, 399).slotCount()).isEqualTo(3);
        assertThat(ContextSlots.in(KIND, 40, 1L << 60).slotCount()).isEqualTo(Integer.MAX_VALUE);
        assertThatThrownBy(() -> ContextSlots.in(KIND, 0, 399)).hasMessageContaining("at a stride of 0");
    }

    @Test
    void shouldRefuseRowsThatOverlapOrAreNone() {
        assertThatThrownBy(() -> new ContextSlots(KIND, 39, 3))
                .hasMessage(
                        "context row state has 3 rows of 40 bytes at a stride of 39, expected at least one row, and a"
                                + " stride of at least a row");
        assertThatThrownBy(() -> new ContextSlots(KIND, 100, 0)).hasMessageContaining("has 0 rows");
    }
}
