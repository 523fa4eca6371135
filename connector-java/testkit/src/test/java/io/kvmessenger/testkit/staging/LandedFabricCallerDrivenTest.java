package io.kvmessenger.testkit.staging;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** The same with engines that have no thread of their own, and slabs of which few pages fill one. */
final class LandedFabricCallerDrivenTest extends LandedFabricContractTest {
    @Override
    protected TransferOptions options() {
        return super.options()
                .with(TransferOptions.THREADING, ThreadingMode.CALLER)
                .with(TransferOptions.LANDING_SLABS, 2)
                .with(TransferOptions.LANDING_SLAB_KIB, 64);
    }
}
