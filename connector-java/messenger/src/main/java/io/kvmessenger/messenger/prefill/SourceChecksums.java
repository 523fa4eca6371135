package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.ArrayDeque;
import java.util.function.Consumer;
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
    private final Consumer<LayerWrite> summed;
    private final ArrayDeque<LayerWrite> waiting = new ArrayDeque<>();

    /**
     * @param writesPerFrameMax how many checksums are collected before they are sent
     * @param summed receives each write whose pages are no longer needed for its checksum
     */
    SourceChecksums(Sessions sessions, int writesPerFrameMax, RandomGenerator random, Consumer<LayerWrite> summed) {
        this.sessions = sessions;
        this.writesPerFrameMax = writesPerFrameMax;
        this.random = random;
        this.summed = summed;
    }

    /** Adds a completed write. */
    void add(LayerWrite write) {
        int interval = write.delivery.grant.checksumInterval();
        if (interval == 0 || write.delivery.stopped) {
            summed.accept(write);
            return;
        }
        PagedWrites request = write.request;
        write.sum = new PageSum(
                request.source(), request.sourcePages(), request.pageBytes(), random.nextInt(interval), interval);
        waiting.add(write);
    }

    /** Returns the number of writes worked on. */
    int doWork() {
        int work = 0;
        long bytes = 0;
        while (!waiting.isEmpty() && bytes < PageSum.BYTES_PER_CYCLE) {
            LayerWrite write = waiting.getFirst();
            if (!write.delivery.stopped) {
                bytes += write.sum.advance(PageSum.BYTES_PER_CYCLE - bytes);
            }
            work++;
            if (write.delivery.stopped || write.sum.done()) {
                waiting.removeFirst();
                note(write);
                summed.accept(write);
            }
        }
        return work;
    }

    private void note(LayerWrite write) {
        Delivery delivery = write.delivery;
        if (delivery.stopped) {
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

    /** Sends the checksums collected for a delivery. */
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
