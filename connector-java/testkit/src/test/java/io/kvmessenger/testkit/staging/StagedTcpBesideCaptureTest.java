package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.OpenCapture;
import org.junit.jupiter.api.extension.ExtendWith;

/** Staging in both directions while an engine of the process captures a graph: no call ends the capture. */
@ExtendWith(OpenCapture.class)
final class StagedTcpBesideCaptureTest extends StagedTcpContractTest {}
