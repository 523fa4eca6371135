package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

final class DataNetworksTest {
    private static final InetAddress FIRST = InetAddress.ofLiteral("127.0.0.1");
    private static final InetAddress SECOND = InetAddress.ofLiteral("127.0.0.2");
    private static final InetAddress SIX = InetAddress.ofLiteral("::1");
    private static final InetSocketAddress OTHERWISE = new InetSocketAddress(FIRST, 9);

    private static List<InetSocketAddress> at(InetAddress... hosts) {
        return IntStream.range(0, hosts.length)
                .mapToObj(i -> new InetSocketAddress(hosts[i], 1000 + i))
                .toList();
    }

    private static MemorySegment reported(String words) {
        return MemorySegment.ofArray(words.getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void shouldReadWhatWasGiven() {
        DataNetworks reported = new DataNetworks(List.of(FIRST, SECOND, SIX), at(FIRST, SECOND, SIX));
        assertThat(DataNetworks.parse(reported.encode(), OTHERWISE)).isEqualTo(reported.addresses());
    }

    @Test
    void shouldDialTheOnlyAddressWhereNothingIsGiven() {
        DataNetworks none = new DataNetworks(List.of(), List.of());
        assertThat(DataNetworks.parse(none.encode(), OTHERWISE)).containsExactly(OTHERWISE);
    }

    @Test
    void shouldRefuseWhatIsNoListOfAddresses() {
        assertThatThrownBy(() -> DataNetworks.parse(reported("127.0.0.1:1  127.0.0.2:1"), OTHERWISE))
                .isInstanceOf(IllegalArgumentException.class);
        assertThatThrownBy(() -> DataNetworks.parse(reported("a-name:1"), OTHERWISE))
                .isInstanceOf(IllegalArgumentException.class);
        assertThatThrownBy(() -> DataNetworks.parse(reported("127.0.0.1:1 ".repeat(8) + "127.0.0.1:1"), OTHERWISE))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("9 data addresses, at most 8");
    }

    @Test
    void shouldGiveEachNetworkAsManySockets() {
        assertThat(DataNetworks.laneCount(3, 0)).isEqualTo(3);
        assertThat(DataNetworks.laneCount(3, 1)).isEqualTo(3);
        assertThat(DataNetworks.laneCount(2, 4)).isEqualTo(4);
        assertThat(DataNetworks.laneCount(3, 2)).isEqualTo(4);
        assertThat(IntStream.rangeClosed(1, 4).map(lane -> DataNetworks.networkOf(lane, 2)))
                .containsExactly(0, 1, 0, 1);
    }

    @Test
    void shouldDialFromTheAddressOfTheSameNumber() {
        DataNetworks own = new DataNetworks(List.of(FIRST, SECOND), List.of());
        assertThat(own.sourceTowards(at(SECOND, FIRST), 1)).isEqualTo(SECOND);
        assertThat(own.sourceTowards(at(SECOND), 0)).isEqualTo(FIRST);
        assertThat(own.sourceTowards(at(FIRST, SECOND, FIRST), 0))
                .as("fewer than the peer has")
                .isNull();
        assertThat(own.sourceTowards(at(FIRST, SIX), 1)).as("of another family").isNull();
    }
}
