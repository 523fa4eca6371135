package io.kvmessenger.transfer.staging;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.WriteBatch;
import org.junit.jupiter.api.Test;

/** The last check before a device copies: it holds whatever has queued the page. */
final class GatheredLengthTest {
    private static final StagingLimits LIMITS = new StagingLimits(64, 2, 4);

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    @Test
    void shouldNeverTakeSlabsForAPageThatIsLongerThanThey() {
        Staging staging = new Staging(DeviceAccess.NONE, LIMITS);
        GatheredWrites gathered = staging.gather(new GatheredWrites.Splitter() {
            @Override
            public boolean canSplit() {
                return true;
            }

            @Override
            public long split(long postId, int unitCount) {
                return postId;
            }
        });
        Endpoint path = (batch, postId) -> 0;
        long lengthBytes = LIMITS.pageMaxBytes() + 1;
        Registered source = new Registered(
                new RegionDescriptor(1, lengthBytes, RegionDescriptor.VERSION, false),
                new Memory.Device(0, 1 << 20, lengthBytes, Memory.HandleKind.NONE));
        WriteBatch batch = new WriteBatch();
        batch.set(0, new SingleWrite(source, 0, source.descriptor(), 0, lengthBytes, () -> Imm.of(1, 0), 1), 0, 1);
        assertThatThrownBy(() -> gathered.post(path, batch, 1))
                .isInstanceOf(AssertionError.class)
                .hasMessage("257 bytes were to be gathered in 256 bytes of slabs");
        assertThat(gathered.isReading()).isFalse();
    }
}
