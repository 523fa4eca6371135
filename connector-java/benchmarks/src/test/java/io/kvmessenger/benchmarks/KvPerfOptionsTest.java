package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class KvPerfOptionsTest {
    @Test
    void shouldMove256MebibytesOf64KibibytePagesByDefault() {
        KvPerfOptions options = KvPerfOptions.parse(new String[0]);
        assertThat(options.roundBytes()).isEqualTo(256 << 20);
        assertThat(options.pageCount()).isEqualTo(4096);
        assertThat(options.poolPages()).isEqualTo(8192);
        assertThat(options.batchPages()).isEqualTo(16);
        assertThat(options.check()).isFalse();
    }

    @Test
    void shouldTakeSuffixesOfBytes() {
        KvPerfOptions options = KvPerfOptions.parse(
                new String[] {"--pool-bytes", "1G", "--page-bytes", "4K", "--check", "--transport", "tcp"});
        assertThat(options.poolBytes()).isEqualTo(1L << 30);
        assertThat(options.pageBytes()).isEqualTo(4096);
        assertThat(options.pageCount()).isEqualTo(65_536);
        assertThat(options.check()).isTrue();
        assertThat(options.transport()).isEqualTo("tcp");
    }

    @Test
    void shouldSpreadThePagesOfARoundOverItsPeers() {
        KvPerfOptions options =
                KvPerfOptions.parse(new String[] {"--page-count", "50", "--batch-pages", "8", "--peers", "3"});
        assertThat(options.requestCount()).isEqualTo(7);
        assertThat(IntStream.range(0, 3).mapToObj(options::pagesOf)).containsExactly(18L, 16L, 16L);
    }

    @Test
    void shouldSendOnePingAtATime() {
        KvPerfOptions options =
                KvPerfOptions.parse(new String[] {"--op", "pingpong", "--in-flight", "8", "--yardstick"});
        assertThat(options.inFlight()).isEqualTo(1);
        assertThat(options.yardstick()).isFalse();
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "--transport rdma | --transport is \"rdma\", expected shm, tcp, libfabric or verbs",
                "--threading both | --threading is \"both\", expected own or caller",
                "--op scatter | --op is \"scatter\", expected single, paged or pingpong",
                "--page-bytes x | --page-bytes is \"x\", expected a number from 8 to 1073741824",
                "--page-bytes 12 | --page-bytes is 12, expected a multiple of 8",
                "--pool-bytes 1M --page-count 17 | --page-count is \"17\", expected a number from 1 to 16",
                "--page-count 2 --batch-pages 1 --peers 3 | --peers is 3, expected at most 2, the requests of a round",
                "--workers 17 | --workers is \"17\", expected a number from 1 to 16",
                "--in-flight 0 | --in-flight is \"0\", expected a number from 1 to 65536",
                "--seconds 99999999999999999999G"
                        + " | --seconds is \"99999999999999999999G\", expected a number from 0 to 86400",
                "--pages 3 | --pages is unknown: run kvperf with --help for the options",
                "--rounds | --rounds is unknown or lacks a value: run kvperf with --help for the options"
            })
    void shouldNameTheOptionTheValueAndWhatIsExpected(String arguments, String sentence) {
        assertThatThrownBy(() -> KvPerfOptions.parse(arguments.split(" ", -1)))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage(sentence);
    }
}
