package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.VerbsApi;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.List;
import org.junit.jupiter.api.Test;

final class VerbsSearchTest {
    private static final int INIT = 2;
    private static final int INFINIBAND = 1;
    private static final int ROCE_V1 = 1;
    private static final byte[] LINK_LOCAL = gid("fe80::1");

    private static InetAddress host(String literal) {
        try {
            return InetAddress.getByName(literal);
        } catch (UnknownHostException e) {
            throw new AssertionError(e);
        }
    }

    private static byte[] gid(String literal) {
        return VerbsSearch.gidOf(host(literal));
    }

    private static StandInVerbs.Device roce(String name, byte[]... gids) {
        return new StandInVerbs.Device(
                name,
                VerbsApi.IBV_PORT_ACTIVE,
                VerbsApi.IBV_LINK_LAYER_ETHERNET,
                List.of(gids),
                VerbsApi.IBV_GID_TYPE_ROCE_V2);
    }

    private static StandInVerbs.Device device(String name, int state, int layer, int type) {
        return new StandInVerbs.Device(name, state, layer, List.of(LINK_LOCAL), type);
    }

    private static List<VerbsPort> find(StandInVerbs library, String... devices) {
        return new VerbsSearch(library, host("10.0.0.2")).find(List.of(devices));
    }

    @Test
    void shouldMapAnAddressOfIpv4() {
        assertThat(gid("10.0.0.2")).containsExactly(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2);
        assertThat(gid("fe80::1")).hasSize(16).startsWith(0xfe, 0x80).endsWith(1);
    }

    @Test
    void shouldTakeTheDeviceWithTheAdvertisedAddress() {
        StandInVerbs library = new StandInVerbs(
                roce("first", LINK_LOCAL, gid("10.0.0.1")),
                roce("second", LINK_LOCAL, gid("10.0.0.9"), gid("10.0.0.2")),
                roce("third", gid("10.0.0.3")));
        VerbsPort port = find(library).getFirst();
        assertThat(port.device()).isEqualTo("second");
        assertThat(port.gidIndex()).isEqualTo(2);
        assertThat(port.gid()).isEqualTo(gid("10.0.0.2"));
        assertThat(library.openDevices).containsExactly("second");
    }

    @Test
    void shouldElseTakeTheFirstThatIsActiveWithItsAddressOfIpv4() {
        StandInVerbs library = new StandInVerbs(
                device("down", INIT, VerbsApi.IBV_LINK_LAYER_ETHERNET, VerbsApi.IBV_GID_TYPE_ROCE_V2),
                roce("first", LINK_LOCAL, gid("10.0.0.1")),
                roce("second", gid("10.0.0.3")));
        VerbsPort port = find(library).getFirst();
        assertThat(port.device()).isEqualTo("first");
        assertThat(port.gidIndex()).isEqualTo(1);
        assertThat(library.openDevices).containsExactly("first");
    }

    @Test
    void shouldTakeTheDeviceThatIsNamed() {
        StandInVerbs library = new StandInVerbs(roce("first", gid("10.0.0.2")), roce("second", LINK_LOCAL));
        VerbsPort port = find(library, "second").getFirst();
        assertThat(port.device()).isEqualTo("second");
        assertThat(port.gidIndex()).isZero();
        assertThat(port.ethernet()).isTrue();
    }

    @Test
    void shouldTakeSeveralThatAreNamedInTheirOrder() {
        StandInVerbs library = new StandInVerbs(
                roce("first", gid("10.0.0.2")), roce("second", LINK_LOCAL), roce("third", gid("10.0.0.3")));
        assertThat(find(library, "third", "first"))
                .extracting(VerbsPort::device)
                .containsExactly("third", "first");
        assertThat(library.openDevices).containsExactly("third", "first");
    }

    @Test
    void shouldGoOnWithoutANamedDeviceThatIsDownAndSayWhich() {
        StandInVerbs library = new StandInVerbs(
                device("down", INIT, VerbsApi.IBV_LINK_LAYER_ETHERNET, VerbsApi.IBV_GID_TYPE_ROCE_V2),
                roce("first", gid("10.0.0.2")));
        VerbsSearch search = new VerbsSearch(library, host("10.0.0.2"));
        assertThat(search.find(List.of("down", "first")))
                .extracting(VerbsPort::device)
                .containsExactly("first");
        assertThat(search.leftOut()).containsExactly("down, whose port 1 is not active");
        assertThat(library.openDevices).containsExactly("first");
    }

    @Test
    void shouldLeaveNoDeviceOpenWhereOneIsUnknown() {
        StandInVerbs library = new StandInVerbs(roce("first", gid("10.0.0.2")));
        assertThatThrownBy(() -> find(library, "first", "mlx5_0")).hasMessageContaining("no device mlx5_0");
        assertThat(library.openDevices).isEmpty();
    }

    @Test
    void shouldTakeInfiniBandByItsLid() {
        VerbsPort port = find(new StandInVerbs(
                        device("ib", VerbsApi.IBV_PORT_ACTIVE, INFINIBAND, VerbsApi.IBV_GID_TYPE_IB)))
                .getFirst();
        assertThat(port.ethernet()).isFalse();
        assertThat(port.lid()).isEqualTo(3);
    }

    @Test
    void shouldSayInOneLineWhyThereIsNone() {
        StandInVerbs library = new StandInVerbs(
                device("down", INIT, VerbsApi.IBV_LINK_LAYER_ETHERNET, VerbsApi.IBV_GID_TYPE_ROCE_V2),
                device("old", VerbsApi.IBV_PORT_ACTIVE, VerbsApi.IBV_LINK_LAYER_ETHERNET, ROCE_V1));
        assertThatThrownBy(() -> find(library))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContainingAll(
                        "down, whose port 1 is not active", "old, whose port 1 has no address for RoCE v2")
                .hasMessageNotContaining("\n");
        assertThatThrownBy(() -> find(library, "mlx5_0"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContainingAll("no device mlx5_0", "verbs_devices", "only down, old", "ibv_devices");
        assertThatThrownBy(() -> find(library, "down"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContainingAll("verbs_devices down", "only down, whose port 1 is not active", "ibv_devices");
        assertThatThrownBy(() -> find(new StandInVerbs()))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("finds no RDMA device with an active port, but no device");
        assertThat(library.openDevices).isEmpty();
    }
}
