package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.testkit.device.OpenCapture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Staging in both directions while an engine of the process captures a graph: no call ends the capture. */
final class StagedTcpBesideCaptureTest extends StagedTcpContractTest {
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
