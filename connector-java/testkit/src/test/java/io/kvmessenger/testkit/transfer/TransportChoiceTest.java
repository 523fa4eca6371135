package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Which transport two engines meet on. */
@Timeout(900)
final class TransportChoiceTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long MEMORY_BYTES = 1 << 16;

    private static String chosen(TransferOptions writerOptions, TransferOptions targetOptions) {
        try (DrivenEngine writer = new DrivenEngine(writerOptions, "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(targetOptions, "target", MEMORY_BYTES)) {
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the peer", () -> writer.ready.contains(peer));
            return peer.transport();
        }
    }

    @Test
    void shouldTakeTheFirstThatBothHave() {
        TransferOptions both = TransferOptions.defaults();
        assertThat(chosen(both, both)).isEqualTo("shm");
        assertThat(chosen(both, both.withTransports("tcp"))).isEqualTo("tcp");
        assertThat(chosen(both.withTransports("tcp", "shm"), both)).isEqualTo("tcp");
    }

    @Test
    void shouldFallBackToTcpWhenMemoryCannotBeMapped() {
        try (Arena arena = Arena.ofShared();
                DrivenEngine writer = new DrivenEngine(TransferOptions.defaults(), "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(TransferOptions.defaults(), "target", MEMORY_BYTES)) {
            MemorySegment memory = arena.allocate(MEMORY_BYTES);
            Region region = target.engine().register(Memory.host(memory));
            WindowRanges all = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
            Admission admission = target.engine().admit("writer");
            ImmWindow window = target.engine().openWindow(admission, WindowArea.of(region.descriptor(), all), 1, 7);
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the peer", () -> writer.ready.contains(peer));
            assertThat(peer.transport()).isEqualTo("tcp");
            RemoteWindow remote = writer.engine().allow(peer, window.imm(), WindowArea.of(region.descriptor(), all));
            writer.memory().fill((byte) 3);
            writer.submit(
                    peer, new SingleWrite(writer.region(), 0, region.descriptor(), 0, MEMORY_BYTES, remote, 1), 1);
            DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(7L));
            assertThat(memory.mismatch(writer.memory())).isEqualTo(-1);
            writer.engine().close();
            target.engine().close();
        }
    }

    /** As an engine would make it that does not know better. */
    @Test
    void shouldNotShareMemoryThatMayShrink() {
        int memfd;
        try (Arena arena = Arena.ofConfined()) {
            memfd = LIB_C.memfd_create(arena.allocateFrom("unsealed"), MemoryApi.MFD_CLOEXEC);
        }
        assertThat(LIB_C.ftruncate(memfd, MEMORY_BYTES)).isZero();
        long address =
                LIB_C.mmap(0, MEMORY_BYTES, MemoryApi.PROT_READ | MemoryApi.PROT_WRITE, MemoryApi.MAP_SHARED, memfd, 0);
        try (DrivenEngine writer = new DrivenEngine(TransferOptions.defaults(), "writer", MEMORY_BYTES);
                DrivenEngine target = new DrivenEngine(TransferOptions.defaults(), "target", MEMORY_BYTES)) {
            Region region = target.engine().register(Memory.hostAt(address, MEMORY_BYTES, memfd));
            assertThat(region.descriptor().shareable()).isFalse();
            assertThat(target.region().descriptor().shareable()).isTrue();
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the peer", () -> writer.ready.contains(peer));
            assertThat(peer.transport()).isEqualTo("tcp");
        } finally {
            LIB_C.munmap(address, MEMORY_BYTES);
            LIB_C.close(memfd);
        }
    }

    @Test
    void shouldListenForDataWhereItIsConfigured() {
        TransferOptions tcp = TransferOptions.defaults().withTransports("tcp");
        String any;
        try (DrivenEngine first = new DrivenEngine(tcp, "first", MEMORY_BYTES)) {
            any = first.engine().address().transports().getFirst().location();
        }
        int port = SocketLocation.parse(any, false).getPort();
        try (DrivenEngine fixed = new DrivenEngine(tcp.with(TransferOptions.DATA_PORT, port), "fixed", MEMORY_BYTES)) {
            assertThat(fixed.engine().address().transports().getFirst().location())
                    .isEqualTo("127.0.0.1:" + port);
            assertThatThrownBy(
                            () -> new DrivenEngine(tcp.with(TransferOptions.DATA_PORT, port), "second", MEMORY_BYTES))
                    .hasMessageContainingAll("option data_port is " + port, "EADDRINUSE", "0 for any");
        }
        // Again at once, whatever lingers of the first.
        new DrivenEngine(tcp.with(TransferOptions.DATA_PORT, port), "again", MEMORY_BYTES).close();
    }

    @Test
    void shouldHaveMoreThanOneWorkerOnlyWhereThereAreManyCores() {
        assertThat(IntStream.of(1, 8, 15, 16, 24, 32, 256).map(TransferOptions::workersForCores))
                .containsExactly(1, 1, 1, 2, 3, 4, 4);
    }

    @Test
    void shouldNameTheOptionThatIsWrong() {
        TransferOptions defaults = TransferOptions.defaults();
        assertThatThrownBy(() -> defaults.withTransports("rdma")).hasMessageContaining("option transports is rdma");
        assertThatThrownBy(() -> defaults.with(TcpTransport.STREAMS_PER_PEER, 0))
                .hasMessageContaining("option streams_per_peer is 0");
        assertThatThrownBy(() -> defaults.with(TransferOptions.WORKERS, 17))
                .hasMessageContaining("option transfer_workers is 17");
        assertThatThrownBy(() -> new DrivenEngine(defaults.withHosts("192.0.2.1", ""), "x", MEMORY_BYTES))
                .hasMessageContaining("option listen_host is 192.0.2.1");
        assertThatThrownBy(() -> new DrivenEngine(defaults.withHosts("0.0.0.0", ""), "x", MEMORY_BYTES))
                .hasMessageContaining("option advertise_host is 0.0.0.0");
    }
}
