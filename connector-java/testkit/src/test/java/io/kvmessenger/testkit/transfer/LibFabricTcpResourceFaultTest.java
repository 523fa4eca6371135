package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

/** What {@link ResourceFaultContractTest} says, over libfabric's tcp. */
@ExtendWith(NeedsLibFabric.class)
final class LibFabricTcpResourceFaultTest extends ResourceFaultContractTest {
    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }
}
