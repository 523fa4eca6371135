package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Requirements when a peer has no path of the preferred transport left: its writes take the next transport of both,
 * none is lost, duplicated or delayed forever, and the preferred one is used again when it is back.
 */
@Timeout(900)
public abstract class NextTransportContractTest extends RoundsOfPages {
    private static final long PATH_LIMIT_NS = 5_000_000_000L;

    private final BreakingLibC breaking = new BreakingLibC();

    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected TransferOptions options() {
        return TransferOptions.defaults()
                .with(TcpTransport.STREAMS_PER_PEER, 2)
                .with(TransferOptions.CONNECT_LIMIT_NS, PATH_LIMIT_NS);
    }

    private void connect(String preferred, String next) {
        connect(
                new DrivenEngine(options().withTransports(preferred, next), "writer", MEMORY_BYTES, breaking.libC()),
                new DrivenEngine(options(), "target", MEMORY_BYTES),
                preferred);
    }

    @Test
    void shouldGoOnOverShmWhenNoTcpSocketComesBackAndTakeTcpAgainWhenOneDoes() {
        connect(TransferOptions.TCP, TransferOptions.SHM);
        round(() -> {});
        round(() -> {
            breaking.refuseConnects();
            assertThat(breaking.breakAll()).isEqualTo(2);
        });
        assertThat(peer.transport()).isEqualTo(TransferOptions.SHM);
        round(() -> {});
        assertThat(peer.transport()).isEqualTo(TransferOptions.SHM);
        breaking.allowConnects();
        DrivenEngine.awaitBoth("a socket", writer, target, () -> breaking.count() == 2);
        while (!peer.transport().equals(TransferOptions.TCP)) {
            round(() -> {});
        }
        assertNothingLost();
    }

    /** Memory that cannot be mapped can still be sent. */
    @Test
    void shouldGoOnOverTcpWhenARegionCannotBeMappedAndTakeShmAgainWhenAllCan() {
        connect(TransferOptions.SHM, TransferOptions.TCP);
        round(() -> {});
        try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(PAGE_BYTES);
            Region region = target.engine().register(Memory.host(memory));
            WindowArea area = WindowArea.of(region.descriptor(), pages(0));
            long filled = ++lastCookie;
            ImmWindow window = target.engine().openWindow(admission, area, 1, filled);
            RemoteWindow remoteOfOther = writer.engine().allow(peer, window.imm(), area);
            SingleWrite write =
                    new SingleWrite(writer.region(), 0, region.descriptor(), 0, PAGE_BYTES, remoteOfOther, 1);
            round(() -> writer.submit(peer, write, ++lastCookie));
            DrivenEngine.awaitBoth("the other window", target, writer, () -> target.filled.contains(filled));
            assertThat(peer.transport()).isEqualTo(TransferOptions.TCP);
            writer.engine().disallow(peer, remoteOfOther);
            window.close(true);
            region.deregister();
        }
        while (!peer.transport().equals(TransferOptions.SHM)) {
            round(() -> {});
        }
        round(() -> {});
        assertNothingLost();
    }

    @Test
    void shouldFailInTheTimeGivenWhenNoTransportIsLeft() {
        connect(TransferOptions.TCP, TransferOptions.SHM);
        try (Arena arena = Arena.ofShared()) {
            Region region = target.engine().register(Memory.host(arena.allocate(PAGE_BYTES)));
            ImmWindow window = grant(everything(), Long.MAX_VALUE, ++lastCookie);
            breaking.refuseConnects();
            long beganNs = System.nanoTime();
            breaking.breakAll();
            int[] all = shuffled(PAGE_COUNT, random);
            long firstCookie = lastCookie + 1;
            for (int i = 0; i < WRITES; i++) {
                long cookie = lastCookie + 1;
                if (writer.engine().submit(peer, paged(window, all, all), cookie) == TransferEngine.ACCEPTED) {
                    lastCookie = cookie;
                }
            }
            DrivenEngine.awaitBoth("the loss", writer, target, () -> writer.lost.containsKey(peer.id()));
            assertThat(System.nanoTime() - beganNs).isGreaterThan(PATH_LIMIT_NS);
            assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
            assertThat(haveEnded(firstCookie)).isTrue();
            assertThat(writer.endings.values()).containsOnly(1);
            target.await("the end of the admission", () -> target.closedAdmissions.containsKey(admission.id()));
            window.close(true);
            region.deregister();
        }
    }
}
