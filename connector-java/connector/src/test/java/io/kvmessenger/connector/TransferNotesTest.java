package io.kvmessenger.connector;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a transfer engine says of how it reaches memory is a line of the log, once memory is registered. */
@Timeout(900)
final class TransferNotesTest {
    private static final String NOTE = "memory of device 0 is reached in a way that is worth a line";

    /** Says it as soon as it has memory. */
    static final class Noting implements TransferDecorator {
        @Override
        public TransferEngine decorate(TransferEngine engine, Set<Long> contextAddresses) {
            return new PassingTransferEngine(engine) {
                @Override
                public List<String> notes() {
                    return List.of(NOTE);
                }
            };
        }
    }

    @AfterEach
    void forget() {
        System.clearProperty(TransferWiring.DECORATOR_PROPERTY);
    }

    @Test
    void shouldLogHowMemoryIsReached() {
        System.setProperty(TransferWiring.DECORATOR_PROPERTY, Noting.class.getName());
        try (EngineDouble prefiller = EngineDouble.of("prefiller")) {
            prefiller.awaitLog(NOTE);
        }
    }
}
