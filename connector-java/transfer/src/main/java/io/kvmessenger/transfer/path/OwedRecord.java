package io.kvmessenger.transfer.path;

import java.util.function.BooleanSupplier;

/** A record that goes to the peer once, as soon as there is room for it. Worker only. */
public final class OwedRecord {
    private final BooleanSupplier report;
    private boolean sent;

    /** @param report sends the record, if there is room for it now */
    public OwedRecord(BooleanSupplier report) {
        this.report = report;
    }

    /** Sends it unless it has been sent; returns whether it has. */
    public boolean send() {
        sent = sent || report.getAsBoolean();
        return sent;
    }

    public boolean isSent() {
        return sent;
    }
}
