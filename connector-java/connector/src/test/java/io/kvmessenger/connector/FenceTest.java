package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.testkit.fault.HeldWrites;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What a fence says of writes that have not ended: pages that are read must not be overwritten. */
@Timeout(900)
class FenceTest {
    /** Of a fence that is reached: the test's own limit ends it before. */
    private static final int FENCE_LIMIT_MILLIS = 3_600_000;

    @TempDir
    Path folder;

    @AfterEach
    void forgetTheFault() {
        System.clearProperty(TransferWiring.DECORATOR_PROPERTY);
        System.clearProperty(HeldWrites.FILE_PROPERTY);
    }

    @Test
    void shouldNotSayThatARequestIsFencedWhileItsWritesAreHeld() throws Exception {
        Path held = folder.resolve("held");
        Files.writeString(held, "0");
        System.setProperty(TransferWiring.DECORATOR_PROPERTY, HeldWrites.class.getName());
        System.setProperty(HeldWrites.FILE_PROPERTY, held.toString());
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            int tokens = EngineDouble.PAGE_TOKENS;
            decoder.fetch("d", "t", prefiller.opened, tokens, 0, List.of(1));
            prefiller.compute(1, "p", "t", tokens, 0, tokens, List.of(5), List.of(5));
            while (prefiller
                    .held()
                    .contains("writesInFlight=0")) { // of three layers those complete together leave as one
                Thread.sleep(1);
            }
            assertThat(fence(prefiller, 1)).isEmpty();

            Files.delete(held);
            assertThat(fence(prefiller, FENCE_LIMIT_MILLIS)).containsExactly("p");
        }
    }

    @Test
    void shouldRefuseADecoratorThatIsNone() {
        System.setProperty(TransferWiring.DECORATOR_PROPERTY, "no.such.Class");
        assertThatThrownBy(() -> EngineDouble.of("prefiller"))
                .isInstanceOf(RefusedException.class)
                .hasMessageContaining("kvmessenger.transferDecorator is no.such.Class");
    }

    private static List<Object> fence(EngineDouble engine, int limitMillis) throws IOException {
        byte[] answer = engine.host.fence(
                engine.opened.handle(),
                EngineDouble.encode(Map.of("requests", List.of("p"), "limitMillis", limitMillis)));
        return List.copyOf((List<?>) JSON.std.mapFrom(answer).get("fenced"));
    }
}
