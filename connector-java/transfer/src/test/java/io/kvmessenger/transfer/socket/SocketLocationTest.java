package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.net.InetSocketAddress;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class SocketLocationTest {
    @ParameterizedTest
    @CsvSource({"127.0.0.1, 127.0.0.1:7", "::1, [::1]:7", "prefiller-0.prefiller, prefiller-0.prefiller:7"})
    void shouldReadWhatItWrites(String host, String location) {
        assertThat(SocketLocation.format(host, 7, false)).isEqualTo(location);
        assertThat(SocketLocation.parse(location, false).getPort()).isEqualTo(7);
        assertThat(SocketLocation.parse(location + "/sealed", true).getPort()).isEqualTo(7);
    }

    @ParameterizedTest
    @ValueSource(strings = {"prefiller-0.prefiller", "localhost", "a_b.svc.cluster.local.", "3com.example", "x"})
    void shouldLeaveANameToTheOneThatDials(String name) {
        InetSocketAddress parsed = SocketLocation.parse(name + ":14700", false);
        assertThat(parsed.isUnresolved()).isTrue();
        assertThat(parsed.getHostString()).isEqualTo(name);
    }

    @Test
    void shouldNotLookUpAnAddress() {
        assertThat(SocketLocation.parse("[::1]:1", false).isUnresolved()).isFalse();
        assertThat(SocketLocation.parse("192.0.2.1:1", false).isUnresolved()).isFalse();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "300.1.1.1:1",
                "a b:1",
                "-a:1",
                "a..b:1",
                ":1",
                "a/b:1",
                "a:70000",
                "a:-1",
                "a:x",
                "[::g]:1",
                "user@host:1",
                "host"
            })
    void shouldRefuseWhatIsNeitherNameNorAddress(String location) {
        assertThatThrownBy(() -> SocketLocation.parse(location, false)).isInstanceOf(IllegalArgumentException.class);
    }

    @Test
    void shouldRefuseANameThatIsTooLong() {
        String name = "a.".repeat(200);
        assertThatThrownBy(() -> SocketLocation.parse(name + "b:1", false))
                .isInstanceOf(IllegalArgumentException.class);
    }
}
