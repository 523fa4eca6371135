package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

/** Rounds of pages over verbs while something happens to a wire. */
abstract class VerbsRounds extends RoundsOfPages {
    private static final long CONNECT_LIMIT_NS = 2_000_000_000L;

    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected TransferOptions options() {
        return TransferOptions.defaults().with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
    }

    void connect(DrivenEngine newWriter, DrivenEngine newTarget) {
        connect(newWriter, newTarget, transport());
    }
}
