package io.kvmessenger.hooks;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class WatchPeriodTest {
    private static final long BEGIN_NS = 5_000_000_000L;

    private final WatchPeriod period = new WatchPeriod(BEGIN_NS);

    @Test
    void shouldLookOftenWhileSomethingHappens() {
        assertEquals(WatchPeriod.MIN_NS, period.periodNs(BEGIN_NS));
        assertEquals(WatchPeriod.MIN_NS, period.periodNs(BEGIN_NS + 100_000));
    }

    @Test
    void shouldWaitAShareOfTheTimeInWhichNothingHasHappened() {
        assertEquals(250_000, period.periodNs(BEGIN_NS + 2_000_000));
        period.onWork(BEGIN_NS + 2_000_000);
        assertEquals(WatchPeriod.MIN_NS, period.periodNs(BEGIN_NS + 2_000_000));
    }

    @Test
    void shouldNeverWaitLongerThanTheLimit() {
        assertEquals(WatchPeriod.MAX_NS, period.periodNs(BEGIN_NS + 60_000_000_000L));
    }

    @Test
    void shouldInterruptALongLayerSeldom() {
        long layerNs = 20_000_000;
        int looks = 0;
        for (long nowNs = BEGIN_NS; nowNs - BEGIN_NS < layerNs; nowNs += period.periodNs(nowNs)) {
            looks++;
        }
        assertTrue(looks < 60, looks + " looks, a look every 50 us makes 400");
    }
}
