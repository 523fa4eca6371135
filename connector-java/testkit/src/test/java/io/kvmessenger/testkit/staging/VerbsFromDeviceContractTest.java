package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** The contract over verbs from a device's memory to a host's: what is gathered is registered with the NIC, and written as a host's. */
@ExtendWith(SlowCopies.class)
final class VerbsFromDeviceContractTest extends TransportContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    /** A device's memory is registered where something can write to it, which verbs cannot by these RDMA devices. */
    @Override
    protected DrivenEngine open(String name) {
        TransferOptions options =
                RdmaDevices.by(options(), name).withTransports(TransferOptions.VERBS, TransferOptions.TCP);
        return StagedMemory.openFromDevice(name, options, MEMORY_BYTES);
    }

    /** The installed library is asked, with a descriptor that the stand-in for the GPU's driver gave: soft-RoCE has no such call. */
    @Test
    void shouldSayThatTheRdmaDeviceRegistersNoDmaBuf() {
        assertThat(writer.engine().notes())
                .singleElement()
                .asString()
                .contains("through host memory only", "ibv_reg_dmabuf_mr on " + RdmaDevices.deviceOf("writer") + ": E");
    }
}
