package io.kvmessenger.testkit.device;

import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;

/**
 * The contract from device memory to device memory over verbs alone: by dma-buf, since nothing else reaches a target there. What was
 * written is seen only once it is flushed, so that an immediate that is counted before would be caught.
 */
final class DmaBufContractTest extends TransportContractTest {
    private final DmaBufEngines engines = new DmaBufEngines();

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected DrivenEngine open(String name) {
        return engines.onDevice(options(), MEMORY_BYTES);
    }
}
