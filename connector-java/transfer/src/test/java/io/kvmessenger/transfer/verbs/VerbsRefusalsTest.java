package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.VerbsApi;
import java.net.InetAddress;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A device that has no room for what is to be made, or gives little at a time: nothing stays behind, and nothing is lost. */
final class VerbsRefusalsTest {
    private static final int ALL = 1000;

    @ParameterizedTest
    @ValueSource(strings = {"ibv_create_cq", "ibv_create_qp", "ibv_modify_qp"})
    void shouldNotReachAPeerForWhichNothingCanBeMade(String call) {
        PathPair paths = new PathPair(2, 2);
        paths.library.refusedCall = call;
        paths.opened();
        assertThat(paths.events).singleElement().asString().startsWith("failed UNREACHABLE " + call + " on w");
        assertEmpty(paths);
    }

    @ParameterizedTest
    @ValueSource(strings = {"ibv_create_cq", "ibv_create_qp", "ibv_modify_qp", "ibv_post_recv"})
    void shouldSayWhatTheTargetHasNoRoomFor(String call) {
        PathPair paths = new PathPair(1, 1);
        paths.accept();
        paths.writer.doWork(0);
        paths.hearDevices();
        paths.library.refusedCall = call;
        paths.turn();
        assertThat(paths.events).singleElement().asString().startsWith("failed UNREACHABLE " + call + " on t0: ");
        assertEmpty(paths);
    }

    /** Of two devices the second has no room. */
    @Test
    void shouldCloseTheDevicesThatWereOpenWhenOneCannotBe() {
        StandInVerbs library = new StandInVerbs(roce("first"), roce("second"));
        List<VerbsPort> ports =
                new VerbsSearch(library, InetAddress.getLoopbackAddress()).find(List.of("first", "second"));
        library.refusedCall = "ibv_alloc_pd";
        library.refusingDevice = "second";
        assertThatThrownBy(() -> Nic.openAll(library, ports, PathPair.SERVICE, Runnable::run))
                .hasMessage("ibv_alloc_pd on second: ENOMEM");
        assertThat(library.openDevices).isEmpty();
        assertThat(library.objects()).isZero();
        library.close();
    }

    private static StandInVerbs.Device roce(String name) {
        return new StandInVerbs.Device(
                name,
                VerbsApi.IBV_PORT_ACTIVE,
                VerbsApi.IBV_LINK_LAYER_ETHERNET,
                List.of(VerbsSearch.gidOf(InetAddress.getLoopbackAddress())),
                VerbsApi.IBV_GID_TYPE_ROCE_V2);
    }

    /** The limit is the user's to raise. */
    @Test
    void shouldSayThatMemoryCannotBeLocked() {
        PathPair paths = new PathPair(1, 1);
        paths.library.refusedCall = "ibv_reg_mr";
        assertThatThrownBy(() -> paths.writerNics.getFirst().regions().add(99, paths.source))
                .hasMessageContainingAll("w0 cannot lock", "ulimit -l");
        assertEmpty(paths);
    }

    @Test
    void shouldTakeCompletionsHoweverFewComeAtATime() {
        PathPair paths = new PathPair(2, 2);
        paths.library.pollMax = 1;
        paths.opened();
        for (int i = 0; i < 50; i++) {
            assertThat(paths.postFirstTo(paths.paths.get(i % 2), i, 4 * i, 4 * i + 2))
                    .isEqualTo(2);
        }
        paths.library.deliver(ALL);
        for (int i = 0; i < 50; i++) {
            paths.turn();
        }
        assertThat(paths.sent).hasSize(50).doesNotHaveDuplicates();
        assertThat(paths.port.arrivedWeight).isEqualTo(100);
        assertEmpty(paths);
    }

    private static void assertEmpty(PathPair paths) {
        paths.library.refusedCall = "";
        paths.close();
        assertThat(paths.library.objects()).isZero();
        assertThat(paths.library.openDevices).isEmpty();
    }
}
