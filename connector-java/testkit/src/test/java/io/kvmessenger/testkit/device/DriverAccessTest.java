package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.device.DriverAccess;
import org.junit.jupiter.api.Test;

/** What an engine takes of devices that hold none of its KV. */
final class DriverAccessTest {
    private static final int OWN_DEVICE = 1;
    private static final int OTHER_DEVICE = 0;

    private final StandInCuda standIn = StandInCuda.load();

    @Test
    void shouldMakeNoContextOnADeviceWithoutARegion() {
        int before = standIn.retained(OTHER_DEVICE);
        try (DriverAccess access = new DriverAccess(StandInCuda.library())) {
            assertThat(access.refusal(OWN_DEVICE)).isNull();
            assertThat(access.pin(1 << 20).byteSize()).isEqualTo(1 << 20);
            access.openStream(OWN_DEVICE).close();
            assertThat(standIn.retained(OWN_DEVICE)).isPositive();
            assertThat(standIn.retained(OTHER_DEVICE)).isEqualTo(before);
        }
    }
}
