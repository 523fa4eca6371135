package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.WriterAndTarget;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A device that takes longer over a copy than a path may be silent: the path has nothing of the write, and is not to blame. */
@Timeout(900)
final class SlowGatherTest extends WriterAndTarget {
    /** The limit of a path's silence over tcp. */
    private static final long CONNECT_LIMIT_NS = 1_500_000_000;

    /** Of each operation of the copy's stream: more than two looks at the paths. */
    private static final long DELAY_NS = 3 * CONNECT_LIMIT_NS;

    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(String name) {
        TransferOptions options = options()
                .with(TcpTransport.STREAMS_PER_PEER, 1)
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
        return StagedMemory.openFromDevice(name, options, MEMORY_BYTES);
    }

    @AfterEach
    void speedUp() {
        StandInCuda.load().delay(0);
    }

    @Test
    void shouldGiveNoPathUpForWhatADeviceIsStillCopying() {
        fillSource(new Random(1));
        StandInCuda.load().delay(DELAY_NS);
        writer.submit(peer, paged(grant(everything(), 1, 1), new int[] {0}, new int[] {0}), 1);
        DrivenEngine.awaitBoth("the page", target, writer, () -> target.filled.contains(1L));
        assertThat(writer.engine().counters().of(TransferCounter.PATHS_LOST)).isZero();
        assertThat(writer.lost).isEmpty();
    }
}
