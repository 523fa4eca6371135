package io.kvmessenger.transfer.spi;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

final class RequestQueueTest {
    /** So small that a position comes back to a place that was used before. */
    private static final int CAPACITY = 2;

    private static final int PAGE_BYTES = 64;
    private static final int PAGE_COUNT = 2;
    private static final RegionDescriptor REGION =
            new RegionDescriptor(1, PAGE_BYTES * PAGE_COUNT, RegionDescriptor.VERSION, false);

    private record Memory(RegionDescriptor descriptor, MemorySegment memory) implements Region {
        @Override
        public void deregister() {}
    }

    private final List<String> seen = new ArrayList<>();
    private final RequestQueue queue = new RequestQueue(CAPACITY, new RequestQueue.Completions() {
        @Override
        public void onCompleted(long cookie) {
            seen.add("completed " + cookie);
        }

        @Override
        public void onFailed(long cookie, TransferFault fault, String detail) {
            seen.add("failed " + cookie);
        }
    });

    private static TransferRequest pages() {
        var memory = new Memory(REGION, Arena.ofAuto().allocate(REGION.lengthBytes()));
        var list = new TransferRequest.PageList(new int[] {0, 1}, 0, PAGE_COUNT, PAGE_BYTES, 0);
        return new TransferRequest.PagedWrites(memory, list, REGION, list, PAGE_BYTES, Imm.withWeight(Imm.of(1, 0), 1));
    }

    private Batch cut(int pagesMax) {
        Batch batch = new Batch();
        assertThat(queue.cut(batch, pagesMax, Long.MAX_VALUE, Long.MAX_VALUE)).isTrue();
        return batch;
    }

    @Test
    void shouldLetACompletionThatComesAfterAFailureCompleteNothingElse() {
        queue.offer(pages(), 1);
        Batch torn = cut(1);
        queue.failAll(TransferFault.PEER_CLOSED, "gone");
        queue.offer(pages(), 2);
        queue.offer(pages(), 3); // in the place of the first
        Batch second = cut(PAGE_COUNT);
        Batch third = cut(1);
        Batch rest = cut(1);
        queue.batchDone(torn.position());
        queue.batchDone(third.position());
        assertThat(seen).as("a page of the third is still being read").containsExactly("failed 1");
        queue.batchDone(second.position());
        queue.batchDone(rest.position());
        assertThat(seen).containsExactly("failed 1", "completed 2", "completed 3");
    }

    @Test
    void shouldCompleteEachRequestWhenItsLastBatchIsDoneInWhateverOrder() {
        queue.offer(pages(), 1);
        queue.offer(pages(), 2);
        Batch first = cut(1);
        Batch rest = cut(1);
        Batch other = cut(PAGE_COUNT);
        queue.batchDone(other.position());
        queue.batchDone(rest.position());
        assertThat(seen).containsExactly("completed 2");
        assertThat(queue.hasRoom()).isFalse();
        queue.batchDone(first.position());
        assertThat(seen).containsExactly("completed 2", "completed 1");
        assertThat(queue.hasRoom()).isTrue();
    }

    @Test
    void shouldHoldABatchThatIsDoneTwiceToBeABug() {
        queue.offer(pages(), 1);
        Batch batch = cut(PAGE_COUNT);
        queue.batchDone(batch.position());
        assertThatThrownBy(() -> queue.batchDone(batch.position())).isInstanceOf(AssertionError.class);
    }
}
