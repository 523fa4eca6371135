package io.kvmessenger.testkit.fault;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PayloadDroppingEngineTest {
    private static final int STRIDE_BYTES = 64;

    private final Recorded recorded = new Recorded();
    private final MemorySegment kv = Arena.ofAuto().allocate(4096);
    private final MemorySegment rows = Arena.ofAuto().allocate(4096);
    private final PayloadDroppingEngine dropping = new PayloadDroppingEngine(recorded, Set.of(rows.address()));

    @Test
    void shouldSendPageZeroInsteadOfKv() {
        assertThat(sourceOffsetOfPage3(kv)).isZero();
    }

    @Test
    void shouldSendContextRowsAsTheyAre() {
        assertThat(sourceOffsetOfPage3(rows)).isEqualTo(3 * STRIDE_BYTES);
    }

    private long sourceOffsetOfPage3(MemorySegment memory) {
        Region source = dropping.register(Memory.host(memory));
        PageList page3 = new PageList(new int[] {3}, 0, 1, STRIDE_BYTES, 0);
        dropping.submit(null, new PagedWrites(source, page3, null, page3, STRIDE_BYTES, null, 1), 0);
        PagedWrites sent = (PagedWrites) recorded.requests.getLast();
        assertThat(sent.targetPages().offsetOf(0)).isEqualTo(3 * STRIDE_BYTES);
        return sent.sourcePages().offsetOf(0);
    }

    /** Sends nothing, and keeps what it was asked. */
    private static final class Recorded extends PassingTransferEngine {
        final List<TransferRequest> requests = new ArrayList<>();

        Recorded() {
            super(null);
        }

        @Override
        public Region register(Memory memory) {
            return new Registered(memory);
        }

        @Override
        public int submit(Peer peer, TransferRequest request, long cookie) {
            requests.add(request);
            return TransferEngine.ACCEPTED;
        }
    }

    private record Registered(Memory memory) implements Region {
        @Override
        public RegionDescriptor descriptor() {
            throw new UnsupportedOperationException("not used here");
        }

        @Override
        public void deregister() {}
    }
}
