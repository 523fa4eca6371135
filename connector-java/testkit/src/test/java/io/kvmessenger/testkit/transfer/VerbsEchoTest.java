package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

class VerbsEchoTest extends EchoContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected DrivenEngine open(String name, long memoryBytes) {
        return new DrivenEngine(RdmaDevices.by(options(), name), name, memoryBytes);
    }
}
