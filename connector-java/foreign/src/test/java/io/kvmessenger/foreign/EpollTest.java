package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

/** The one structure whose layout depends on the processor; that of this machine is {@link LayoutProbeTest}'s. */
class EpollTest {
    @Test
    void shouldPackEventsOnOneArchitectureOnly() {
        assertThat(Epoll.dataOffset("amd64")).isEqualTo(4);
        assertThat(Epoll.dataOffset("aarch64")).isEqualTo(8);
        assertThat(Epoll.dataOffset("riscv64")).isEqualTo(8);
    }

    @Test
    void shouldReadTheEventsThatItWrites() {
        MemorySegment events = MemorySegment.ofArray(new byte[3 * (int) Epoll.SIZE_BYTES]);
        Epoll.set(events, 1, Epoll.EPOLLIN, -2L);
        assertThat(Epoll.mask(events, 1)).isEqualTo(Epoll.EPOLLIN);
        assertThat(Epoll.data(events, 1)).isEqualTo(-2L);
        assertThat(events.asSlice(2 * Epoll.SIZE_BYTES).toArray(ValueLayout.JAVA_BYTE))
                .containsOnly(0);
        assertThat(events.get(ValueLayout.JAVA_INT_UNALIGNED, Epoll.SIZE_BYTES)).isEqualTo(Epoll.EPOLLIN);
    }
}
