package io.kvmessenger.testkit.fault;

import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import java.util.Set;

/** Sends everything but the payload: {@link PayloadDroppingEngine}. */
public final class DroppedPayload implements TransferDecorator {
    @Override
    public TransferEngine decorate(TransferEngine engine, Set<Long> contextAddresses) {
        return new PayloadDroppingEngine(engine, contextAddresses);
    }
}
