package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

final class VerbsReadTest extends ReadContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected DrivenEngine open(String name) {
        return new DrivenEngine(RdmaDevices.by(options(), name), name, MEMORY_BYTES);
    }
}
