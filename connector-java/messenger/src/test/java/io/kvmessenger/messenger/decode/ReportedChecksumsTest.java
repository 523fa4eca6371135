package io.kvmessenger.messenger.decode;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.wire.Checksums;
import org.junit.jupiter.api.Test;

class ReportedChecksumsTest {
    private static final int LAYERS = 126;
    private static final int CHUNKS = 1_000_000 / 512;
    private static final int CHUNK_PAGES = 32;
    private static final int BYTES_PER_WRITE_MAX = 40;

    private final ReportedChecksums reported = new ReportedChecksums();

    private static Checksums.Write write(int layer, int chunk) {
        return Checksums.Write.newBuilder()
                .setRegionId(3)
                .setFromPart(chunk * CHUNK_PAGES)
                .setPartCount(CHUNK_PAGES)
                .setStrideBytes(1 << 20)
                .setOffsetBytes(layer * 65_536L)
                .setPartsPerPage(1)
                .setPartBytes(65_536)
                .setWeight(CHUNK_PAGES)
                .setFirstSummed(layer % 16)
                .setCrc32C(layer * 31 + chunk * 17)
                .build();
    }

    @Test
    void shouldKeepOfAPromptOfAMillionTokensLittleForEachWrite() {
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            for (int layer = 0; layer < LAYERS; layer++) {
                reported.add(write(layer, chunk));
            }
        }
        assertThat(reported.count()).isEqualTo(LAYERS * CHUNKS);
        assertThat(reported.shapeCount()).isEqualTo(LAYERS);
        assertThat(reported.lengthBytes()).isLessThan((long) BYTES_PER_WRITE_MAX * reported.count());
    }

    @Test
    void shouldGiveBackWhatWasReportedInItsOrder() {
        for (int chunk = 0; chunk < 40; chunk++) {
            for (int layer = 0; layer < 3; layer++) {
                reported.add(write(layer, chunk));
            }
        }
        for (int position = 0; position < reported.count(); position++) {
            assertThat(reported.get(position)).isEqualTo(write(position % 3, position / 3));
        }
    }
}
