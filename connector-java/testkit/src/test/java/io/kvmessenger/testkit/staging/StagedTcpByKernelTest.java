package io.kvmessenger.testkit.staging;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.device.CountedRuns;
import io.kvmessenger.testkit.device.OpenCapture;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.transfer.device.DriverAccess;
import org.junit.jupiter.api.extension.ExtendWith;

/** Staging in both directions with the kernel that copies small runs, while an engine of the process captures a graph. */
@ExtendWith(CountedRuns.class)
@ExtendWith(OpenCapture.class)
final class StagedTcpByKernelTest extends StagedTcpContractTest {
    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.open(options(), MEMORY_BYTES, new FfmLibC(), new DriverAccess(StandInCuda.library(), true));
    }
}
