package io.kvmessenger.testkit.transfer;

import io.kvmessenger.testkit.stream.StreamEngines;
import io.kvmessenger.testkit.stream.StreamTransport;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** The whole contract, kept by a transport that was written to see how much one needs. */
class StreamContractTest extends TransportContractTest {
    @Override
    protected String transport() {
        return StreamTransport.NAME;
    }

    @Override
    protected TransferOptions options() {
        return TransferOptions.defaults().with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }

    @Override
    protected DrivenEngine open(String name) {
        return new DrivenEngine(options(), name, MEMORY_BYTES, StreamEngines.open(options()));
    }
}
