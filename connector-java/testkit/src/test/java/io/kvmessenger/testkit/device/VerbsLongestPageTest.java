package io.kvmessenger.testkit.device;

import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.LongestPage;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A write longer than the device's longest message ended the path, and with it an attempt to use the device again. */
@Timeout(900)
final class VerbsLongestPageTest {
    private final DmaBufEngines engines = new DmaBufEngines();

    @Test
    void shouldMoveUpToTheLongestMessageOfTheDevices() {
        long memoryBytes = LongestPage.memoryBytes(LoopbackVerbs.MESSAGE_MAX_BYTES);
        TransferOptions options = TransferOptions.defaults().withTransports(TransferOptions.VERBS, TransferOptions.TCP);
        try (DrivenEngine owner = engines.onHost(options, "owner", memoryBytes);
                DrivenEngine other = engines.onHost(options, "other", memoryBytes)) {
            LongestPage.check(owner, other, TransferOptions.VERBS, LoopbackVerbs.MESSAGE_MAX_BYTES);
        }
    }
}
