package io.kvmessenger.messenger.decode;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.CountingTally;
import io.kvmessenger.messenger.RecordingTransferEngine;
import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;

/** How much a decoder compares before the messenger's timers, and so its heartbeats, are served. */
class PageVerifierTest {
    private static final int PAGE_BYTES = (int) (PageSum.BYTES_PER_CYCLE / 2);
    private static final int FETCHES = 5;

    private final RecordingTransferEngine transfer = new RecordingTransferEngine();
    private final Region region = transfer.register(Memory.host(MemorySegment.ofArray(new byte[PAGE_BYTES])));
    private final PageVerifier verifier = new PageVerifier(
            ChecksumMode.FULL,
            List.of(new RankMemory(List.of(region))),
            List.of(),
            new CountingTally(),
            (fetch, sentence) -> fetch.failure = FetchFailure.DAMAGED);

    /** All of it has arrived: two writes of one page. */
    private Fetch filled(String request) {
        EngineCommand.PrefillerAddress address = new EngineCommand.PrefillerAddress("host", 7, "");
        Fetch fetch = new Fetch(
                new EngineCommand.Fetch(request, "t-" + request, List.of(address), 16, 0, new int[] {0}, 0), 0, 0);
        CRC32C crc = new CRC32C();
        crc.update(new byte[PAGE_BYTES]);
        int zeroSum = (int) crc.getValue();
        FetchSource source = new FetchSource(fetch, address, null);
        for (int i = 0; i < 2; i++) {
            source.grant.checksums.add(Checksums.Write.newBuilder()
                    .setRegionId(region.descriptor().regionId())
                    .setPartCount(1)
                    .setPartsPerPage(1)
                    .setPartBytes(PAGE_BYTES)
                    .setWeight(1)
                    .setCrc32C(zeroSum)
                    .build());
        }
        fetch.sources.add(source);
        return fetch;
    }

    @Test
    void shouldLookAtABoundedNumberOfBytesInATurnHoweverManyFetchesHaveArrived() {
        List<Fetch> fetches = new ArrayList<>();
        for (int i = 0; i < FETCHES; i++) {
            fetches.add(filled("r" + i));
        }
        for (int cycle = 1; cycle <= FETCHES; cycle++) {
            verifier.beginCycle();
            long bytes = 0;
            for (Fetch fetch : fetches) {
                bytes += verifier.advance(fetch);
            }
            assertThat(bytes).as("duty cycle " + cycle).isEqualTo(PageSum.BYTES_PER_CYCLE);
        }
        assertThat(fetches).allMatch(fetch -> !fetch.failing() && fetch.sources.getFirst().grant.comparedCount == 2);
    }
}
