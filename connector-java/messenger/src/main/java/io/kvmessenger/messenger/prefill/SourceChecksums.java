package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.ArrayDeque;
import java.util.random.RandomGenerator;

/**
 * Sends checksums of the pages behind completed writes to decoders that compare.
 *
 * <p>Owned by the messenger's thread. A write counts as in flight until its pages are summed, so that they stay
 * unchanged; the bytes summed per duty cycle are bounded. The sampled pages are selected here at random, so a decoder
 * cannot predict them.
 */
final class SourceChecksums {
    private final Sessions sessions;
    private final int writesPerFrameMax;
    private final RandomGenerator random;
    private final ArrayDeque<LayerWrite> waiting = new ArrayDeque<>();

    /** Bytes that may still be summed in this duty cycle. */
    private long budgetBytes;

    /** @param writesPerFrameMax how many checksums are collected before they are sent */
    SourceChecksums(Sessions sessions, int writesPerFrameMax, RandomGenerator random) {
        this.sessions = sessions;
        this.writesPerFrameMax = writesPerFrameMax;
        this.random = random;
    }

    /** Adds a completed write, if its pages are to be summed; else returns false. */
    boolean add(LayerWrite write) {
        int interval = write.delivery.grant.checksumInterval();
        if (interval == 0 || write.delivery.stopped()) {
            return false;
        }
        PagedWrites request = write.request;
        write.sum = new PageSum(
                request.source(), request.sourcePages(), request.pageBytes(), random.nextInt(interval), interval);
        waiting.add(write);
        return true;
    }

    void beginCycle() {
        budgetBytes = PageSum.BYTES_PER_CYCLE;
    }

    /** Whether a write waits, whose pages may be summed in this duty cycle. */
    boolean mayAdvance() {
        return !waiting.isEmpty() && budgetBytes > 0;
    }

    /** Sums pages of the oldest write. Returns it when they are no longer needed, else null. */
    LayerWrite advance() {
        LayerWrite write = waiting.getFirst();
        if (!write.delivery.stopped()) {
            budgetBytes -= write.sum.advance(budgetBytes);
        }
        if (!write.delivery.stopped() && !write.sum.done()) {
            return null;
        }
        waiting.removeFirst();
        note(write);
        return write;
    }

    private void note(LayerWrite write) {
        Delivery delivery = write.delivery;
        if (delivery.stopped()) {
            return;
        }
        PagedWrites request = write.request;
        PageList target = request.targetPages();
        delivery.checksums.add(Checksums.Write.newBuilder()
                .setContext(write.joinedCount == 0)
                .setGroup(write.joinedCount == 0 ? 0 : write.firstRoute().groupIndex())
                .setRegionId(request.target().regionId())
                .setFromPart(target.from())
                .setPartCount(target.count())
                .setStrideBytes(target.strideBytes())
                .setOffsetBytes(target.offsetBytes())
                .setPartsPerPage(target.partsPerPage())
                .setPartStrideBytes(target.partStrideBytes())
                .setPartBytes(request.pageBytes())
                .setWeight(target.count() * request.weight())
                .setFirstSummed(write.sum.first())
                .setCrc32C(write.sum.value())
                .build());
        if (delivery.checksums.size() >= writesPerFrameMax) {
            flush(delivery);
        }
    }

    void flush(Delivery delivery) {
        if (!delivery.checksums.isEmpty()) {
            PageGrant grant = delivery.grant;
            sessions.send(
                    grant.session(),
                    ControlFrame.newBuilder()
                            .setChecksums(Checksums.newBuilder()
                                    .setGrantId(grant.id())
                                    .addAllWrites(delivery.checksums)));
            delivery.checksums.clear();
        }
    }
}
