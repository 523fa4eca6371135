package io.kvmessenger.testkit.device;

import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EchoContractTest;
import io.kvmessenger.transfer.TransferOptions;

/** Over verbs, on devices of {@link LoopbackVerbs}, from memory of the stand-in's devices to memory of these. */
final class DmaBufEchoTest extends EchoContractTest {
    private final DmaBufEngines engines = new DmaBufEngines();

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected DrivenEngine open(String name, long memoryBytes) {
        return engines.onDevice(options(), memoryBytes);
    }
}
