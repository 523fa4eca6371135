package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.LoopbackVerbs.Side;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A writer's RDMA device that has not read yet what was posted, while its peer ends and it refuses to let go of the queue
 * pair: pages are not given back before it is certain that they are not read any more.
 */
@Timeout(900)
final class ReadingDeviceTest {
    private static final String STOP = "ibv_modify_qp";
    private static final String DESTROY = "ibv_destroy_qp";
    private static final int WRITES = 3;

    private enum Event {
        WRITER_LEAVES,
        TARGET_REVOKES,
        TARGET_ENDS,
        PATH_BREAKS
    }

    private record Case(List<String> refused, Event event) {}

    static Stream<Case> cases() {
        return Stream.of(List.<String>of(), List.of(STOP), List.of(DESTROY), List.of(STOP, DESTROY))
                .flatMap(calls -> Stream.of(Event.values()).map(event -> new Case(calls, event)));
    }

    private final LoopbackVerbs verbs = new LoopbackVerbs(null, "loop0");
    private final DrivenEngine writer = DeviceConnection.open(verbs, "verbs");
    private final DrivenEngine target = DeviceConnection.open(verbs, "verbs");
    private final DeviceConnection connection = new DeviceConnection(writer, target);

    @AfterEach
    void close() {
        verbs.refuse(Side.WRITER);
        writer.close();
        target.close();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldKeepPagesThatMayStillBeRead(Case given) {
        verbs.hold();
        for (long cookie = 1; cookie <= WRITES; cookie++) {
            connection.submit(cookie);
        }
        DrivenEngine.awaitBoth("the posts", writer, target, verbs::mayRead);
        verbs.refuse(Side.WRITER, given.refused.toArray(String[]::new));
        happen(given.event);
        if (given.refused.size() == 2) {
            // Each time the device is asked again, both calls are.
            writer.await("refusals", () -> verbs.refusals() >= 6);
            assertThat(writer.failed).as("pages that may be read").isEmpty();
            assertThat(writer.completed).isEmpty();
            assertThat(verbs.mayRead()).isTrue();
            verbs.refuse(Side.WRITER);
        }
        writer.await("the end of the writes", () -> writer.failed.size() == WRITES);
        assertThat(verbs.mayRead()).isFalse();
    }

    private void happen(Event event) {
        switch (event) {
            case WRITER_LEAVES -> writer.engine().disconnect(connection.peer);
            case TARGET_REVOKES -> target.engine().revoke(connection.admission);
            case TARGET_ENDS -> target.engine().close();
            case PATH_BREAKS -> verbs.breakPaths();
        }
    }
}
