package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.testkit.sim.SilentTally;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class FaultLogTest {
    private final EventQueue events = new EventQueue(new SilentTally(), System::nanoTime);
    private long nowNs = 5;
    private final FaultLog log = new FaultLog(events, () -> nowNs);

    @Test
    void shouldLogAKindOnceAndThenItsCount() throws IOException {
        for (int i = 0; i < 9_000; i++) {
            log.add(fault());
        }
        assertThat(reported()).singleElement().asString().contains("IllegalStateException", "FaultLogTest.fault");

        nowNs += FaultLog.REPEAT_NS;
        log.add(fault());
        log.add(fault());
        assertThat(reported()).singleElement().asString().contains("9000 times again");
    }

    @Test
    void shouldDistinguishKindsAndBoundThem() throws IOException {
        log.add(fault());
        log.add(new OutOfMemoryError("no heap"));
        assertThat(reported()).hasSize(2);

        for (int i = 0; i < 2 * FaultLog.KINDS_MAX; i++) {
            IllegalStateException fault = new IllegalStateException();
            fault.setStackTrace(new StackTraceElement[] {new StackTraceElement("C", "m", "f", i)});
            log.add(fault);
        }
        assertThat(reported()).hasSize(FaultLog.KINDS_MAX - 2 + 1);
    }

    private static IllegalStateException fault() {
        return new IllegalStateException("a bug");
    }

    private List<Object> reported() throws IOException {
        List<Object> lines = new ArrayList<>();
        for (byte[] json = events.drain(1 << 20); json.length > 0; json = events.drain(1 << 20)) {
            for (Object event : (List<?>) JSON.std.mapFrom(json).get("events")) {
                lines.add(((Map<?, ?>) event).get("message"));
            }
        }
        return lines;
    }
}
