package io.kvmessenger.hooks;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class LayerCounterTest {
    @Test
    void shouldReadTheWordAsTheEngineWritesIt() {
        MemorySegment word = Arena.ofAuto().allocate(8, 8);
        word.set(ValueLayout.JAVA_BYTE, 0, (byte) 0xfe);
        word.set(ValueLayout.JAVA_BYTE, 1, (byte) 0x01);
        assertThat(new LayerCounter(word).past(0)).isEqualTo(0x1fe);
    }

    @Test
    void shouldReadAShortWordAsTheEngineWritesIt() {
        MemorySegment word = Arena.ofAuto().allocate(4, 4);
        word.set(ValueLayout.JAVA_BYTE, 0, (byte) 0xfe);
        word.set(ValueLayout.JAVA_BYTE, 1, (byte) 0x01);
        assertThat(new LayerCounter(word).past(0)).isEqualTo(0x1fe);
    }

    @Test
    void shouldSayHowFarTheCountIsPastAPositionAcrossTheWrap() {
        SimulatedCounter engine = new SimulatedCounter();
        engine.set(-3);
        assertThat(engine.counter().past(-5)).isEqualTo(2);
        assertThat(engine.counter().past(4)).as("the count has yet to wrap").isEqualTo(-7);
        engine.set(4);
        assertThat(engine.counter().past(-3)).isEqualTo(7);
        engine.set(Long.MIN_VALUE + 1);
        assertThat(engine.counter().past(Long.MAX_VALUE)).isEqualTo(2);
    }

    @Test
    void shouldCompareWithTheLowHalfOfAPositionWhereTheWordIsShort() {
        SimulatedCounter engine = new SimulatedCounter(LayerCounter.SHORT_LENGTH_BYTES);
        long start = (7L << 32) - 2;
        engine.set(start);
        assertThat(engine.counter().past(start)).isZero();
        assertThat(engine.counter().past(start + 5)).isEqualTo(-5);
        engine.bump(5);
        assertThat(engine.counter().past(start)).isEqualTo(5);
        engine.set(1L << 31);
        assertThat(engine.counter().past((1L << 31) - 1)).isEqualTo(1);
    }

    @Test
    void shouldRefuseMemoryThatCannotHoldTheWord() {
        MemorySegment memory = Arena.ofAuto().allocate(16, 8);
        for (MemorySegment wrong : new MemorySegment[] {
            memory, memory.asSlice(0, 2), memory.asSlice(2, 4), memory.asSlice(4, 8), MemorySegment.ofArray(new long[1])
        }) {
            assertThatThrownBy(() -> new LayerCounter(wrong))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("expected 8 or 4 aligned bytes of native memory");
        }
    }

    /** The writer fills a layer, then counts it; a reader that sees the count must see the layer. */
    @Test
    void shouldShowALayerBeforeItsCount() throws Exception {
        int layerCount = 200_000;
        SimulatedCounter engine = new SimulatedCounter();
        LayerCounter counter = engine.counter();
        long[] layers = new long[layerCount];
        CompletableFuture<Void> forward = CompletableFuture.runAsync(() -> {
            for (int layer = 0; layer < layerCount; layer++) {
                layers[layer] = layer + 1L;
                engine.bump(1);
            }
        });
        int seen = 0;
        while (seen < layerCount && !forward.isCompletedExceptionally()) {
            long count = counter.past(0);
            for (; seen < count; seen++) {
                assertThat(layers[seen]).isEqualTo(seen + 1);
            }
        }
        forward.get(1, TimeUnit.MINUTES);
        assertThat(seen).isEqualTo(layerCount);
    }
}
