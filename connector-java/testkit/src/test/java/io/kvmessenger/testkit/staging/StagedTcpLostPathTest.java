package io.kvmessenger.testkit.staging;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.LostPathContractTest;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DriverAccess;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Data sockets break while pages are gathered, on their way, and copied on. */
final class StagedTcpLostPathTest extends LostPathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(TransferOptions options, String name, LibC libC) {
        return StagedMemory.open(options, MEMORY_BYTES, libC, new DriverAccess(StandInCuda.library()));
    }

    @BeforeEach
    void slowDown() {
        StandInCuda.load().delay(StagedMemory.DELAY_NS);
    }

    @AfterEach
    void speedUp() {
        StandInCuda.load().delay(0);
    }
}
