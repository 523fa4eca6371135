package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.testkit.device.OpenCapture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** The whole contract while an engine of the process captures a graph: no call of a transfer engine ends the capture. */
final class CudaBesideCaptureTest extends CudaTransportContractTest {
    private OpenCapture capture;

    @BeforeEach
    void beginCapture() {
        capture = OpenCapture.begin();
    }

    @AfterEach
    void endCapture() {
        assertThat(capture.end()).isEqualTo(CudaApi.CUDA_SUCCESS);
    }
}
