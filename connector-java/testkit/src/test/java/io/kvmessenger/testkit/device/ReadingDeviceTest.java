package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.testkit.device.LoopbackVerbs.Side;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.engine.TransferEngines;
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
    private static final long MEMORY_BYTES = 1 << 16;
    private static final long CONNECT_LIMIT_NS = 4_000_000_000L;
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
    private final DrivenEngine writer = open();
    private final DrivenEngine target = open();
    private final Admission admission = target.engine().admit("writer");
    private final Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");

    private DrivenEngine open() {
        TransferOptions options = TransferOptions.defaults()
                .withTransports("verbs")
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
        return new DrivenEngine(
                options,
                "engine",
                MEMORY_BYTES,
                TransferEngines.open(options, new FfmLibC(), FfmLibFabric::new, () -> verbs, DeviceAccess.NONE));
    }

    @AfterEach
    void close() {
        verbs.refuse(Side.WRITER);
        writer.close();
        target.close();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldKeepPagesThatMayStillBeRead(Case given) {
        DrivenEngine.awaitBoth("readiness", writer, target, () -> writer.ready.contains(peer));
        verbs.hold();
        for (long cookie = 1; cookie <= WRITES; cookie++) {
            submit(cookie);
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
            case WRITER_LEAVES -> writer.engine().disconnect(peer);
            case TARGET_REVOKES -> target.engine().revoke(admission);
            case TARGET_ENDS -> target.engine().close();
            case PATH_BREAKS -> verbs.breakPaths();
        }
    }

    private void submit(long cookie) {
        WindowRanges ranges = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
        var window = target.openWindow(admission, ranges, 1, cookie);
        RemoteWindow remote = writer.engine()
                .allow(peer, window.imm(), WindowArea.of(target.region().descriptor(), ranges));
        writer.submit(
                peer, new SingleWrite(writer.region(), 0, target.region().descriptor(), 0, 4096, remote, 1), cookie);
    }
}
