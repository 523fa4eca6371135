package io.kvmessenger.testkit.fault;

import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import java.nio.file.Path;
import java.util.Set;

/** Holds writes back while the file that {@link #FILE_PROPERTY} names exists: {@link WriteHoldingEngine}. */
public final class HeldWrites implements TransferDecorator {
    public static final String FILE_PROPERTY = "kvmessenger.fault.holdWrites";

    @Override
    public TransferEngine decorate(TransferEngine engine, Set<Long> contextAddresses) {
        String file = System.getProperty(FILE_PROPERTY);
        if (file == null) {
            throw new IllegalArgumentException(FILE_PROPERTY + " is not set: let it name a file");
        }
        return new WriteHoldingEngine(engine, Path.of(file));
    }
}
