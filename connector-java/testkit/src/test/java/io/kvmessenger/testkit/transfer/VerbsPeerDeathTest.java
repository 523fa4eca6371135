package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

final class VerbsPeerDeathTest extends PeerDeathContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }
}
