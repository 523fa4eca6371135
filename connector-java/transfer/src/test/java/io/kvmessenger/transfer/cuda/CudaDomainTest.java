package io.kvmessenger.transfer.cuda;

import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.FakeInboundChannel;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Writers that must not be given device memory. Refused before the driver is asked anything, so there is none here. */
final class CudaDomainTest {
    private static final LibC LIB_C = new FfmLibC();

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(LIB_C, () -> 0);
    private final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final CudaDomain domain = new CudaDomain(loop, 1, port, new Figures(), "here", null);
    private final FakeInboundChannel channel = new FakeInboundChannel(payload -> "");

    @AfterEach
    void close() {
        loop.close();
        arena.close();
    }

    private void admit() {
        domain.admit(channel, admission, MemorySegment.NULL, 0);
    }

    @Test
    void shouldRefuseAWriterToWhichNoDescriptorCanTravel() {
        channel.watchesProcess = true;
        assertThatIllegalArgumentException().isThrownBy(this::admit).withMessageContaining("Unix socket");
    }

    /** Its device writes on after its sockets have ended, and pages would be used again before that is over. */
    @Test
    void shouldRefuseAWriterWhoseEndCannotBeSeen() {
        channel.carriesDescriptors = true;
        assertThatIllegalArgumentException()
                .isThrownBy(this::admit)
                .withMessageContainingAll("the end of the writer's process cannot be seen", "share a PID namespace");
    }
}
