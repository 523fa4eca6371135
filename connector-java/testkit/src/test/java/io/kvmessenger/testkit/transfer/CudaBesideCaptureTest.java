package io.kvmessenger.testkit.transfer;

import io.kvmessenger.testkit.device.OpenCapture;
import org.junit.jupiter.api.extension.ExtendWith;

/** The whole contract while an engine of the process captures a graph: no call of a transfer engine ends the capture. */
@ExtendWith(OpenCapture.class)
final class CudaBesideCaptureTest extends CudaTransportContractTest {}
