package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

final class VerbsGroupTest extends GroupContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }
}
