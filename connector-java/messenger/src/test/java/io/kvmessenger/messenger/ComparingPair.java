package io.kvmessenger.messenger;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.SplittableRandom;

/** A pair whose decoder compares all pages with those of the prefiller, which hold random KV. */
abstract class ComparingPair extends MessengerPair {
    ComparingPair() {
        decoder = new Side("decoder", 2, 0, ChecksumMode.FULL);
        byte[] kv = new byte[(int) prefiller.region.hostBytes().byteSize()];
        new SplittableRandom(3).nextBytes(kv);
        MemorySegment.copy(kv, 0, prefiller.region.hostBytes(), ValueLayout.JAVA_BYTE, 0, kv.length);
    }

    static EngineCommand.Chunk chunk(String request, int endToken, int[] pages) {
        return new EngineCommand.Chunk(request, "t-" + request, PROMPT_TOKENS, 0, 0, endToken, 0, pages);
    }

    /** As a prefiller tells them early, of a prompt with very many pages. */
    ControlFrame checksumsOfSubmitted(long grantId) {
        Checksums.Builder checksums = Checksums.newBuilder().setGrantId(grantId);
        for (TransferRequest submitted : prefiller.transfer.requests) {
            PagedWrites write = (PagedWrites) submitted;
            PageList target = write.targetPages();
            PageSum sum = new PageSum(write.source(), write.sourcePages(), write.pageBytes(), 0, 1);
            sum.advance(PageSum.BYTES_PER_CYCLE);
            checksums.addWrites(Checksums.Write.newBuilder()
                    .setRegionId(write.target().regionId())
                    .setFromPart(target.from())
                    .setPartCount(target.count())
                    .setStrideBytes(target.strideBytes())
                    .setOffsetBytes(target.offsetBytes())
                    .setPartsPerPage(target.partsPerPage())
                    .setPartBytes(write.pageBytes())
                    .setWeight(target.count() * write.weight())
                    .setCrc32C(sum.value()));
        }
        return ControlFrame.newBuilder().setChecksums(checksums).build();
    }

    /** All KV of the request leaves the prefiller and lands. */
    void send(String request) {
        fetch(request, 1, 0);
        carry();
        sendGranted(request);
    }

    void sendGranted(String request) {
        compute(request, 0);
        for (int i = 0; i < prefiller.transfer.requests.size(); i++) {
            land((PagedWrites) prefiller.transfer.requests.get(i));
        }
        completeAllWrites();
    }

    void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        prefiller.messenger.doWork();
    }

    void land(PagedWrites write) {
        for (int i = 0; i < write.sourcePages().count(); i++) {
            MemorySegment.copy(
                    write.source().hostBytes(),
                    write.sourcePages().offsetOf(i),
                    decoder.region.hostBytes(),
                    write.targetPages().offsetOf(i),
                    write.pageBytes());
        }
    }

    /** The window of the last grant is full. */
    void fill() {
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(cookie));
        decoder.messenger.doWork();
    }
}
