package io.kvmessenger.testkit.transfer;

import io.kvmessenger.testkit.device.CountedRuns;
import io.kvmessenger.testkit.device.OpenCapture;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.cuda.CudaTransport;
import org.junit.jupiter.api.extension.ExtendWith;

/** The whole contract with the kernel that copies small runs, while an engine of the process captures a graph. */
@ExtendWith(CountedRuns.class)
@ExtendWith(OpenCapture.class)
final class CudaByKernelTest extends CudaTransportContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(CudaTransport.COPY_KERNEL, true);
    }
}
