package io.kvmessenger.testkit.staging;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.LostPathContractTest;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DriverAccess;
import org.junit.jupiter.api.extension.ExtendWith;

/** Data sockets break while pages are gathered, on their way, and copied on. */
@ExtendWith(SlowCopies.class)
final class StagedTcpLostPathTest extends LostPathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(TransferOptions options, String name, LibC libC) {
        return StagedMemory.open(options, MEMORY_BYTES, libC, new DriverAccess(StandInCuda.library()));
    }
}
