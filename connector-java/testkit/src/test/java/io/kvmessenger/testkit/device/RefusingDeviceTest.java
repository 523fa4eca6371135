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
 * An RDMA device that was lost refuses to stop and to destroy its queue pairs. That ends what goes through it, and nothing
 * else of either engine; and what the device has not proven is not reported.
 */
@Timeout(900)
final class RefusingDeviceTest {
    private static final String STOP = "ibv_modify_qp";
    private static final String DESTROY = "ibv_destroy_qp";

    private enum Event {
        WRITER_LEAVES {
            @Override
            void happen(RefusingDeviceTest test) {
                test.writer.engine().disconnect(test.byVerbs.peer);
            }
        },
        WRITER_ENDS {
            @Override
            void happen(RefusingDeviceTest test) {
                test.writer.engine().close();
            }
        },
        TARGET_REVOKES {
            @Override
            void happen(RefusingDeviceTest test) {
                test.target.engine().revoke(test.byVerbs.admission);
            }
        },
        PATH_BREAKS {
            @Override
            void happen(RefusingDeviceTest test) {
                test.verbs.breakPaths();
                test.byVerbs.submit(9); // completions are read while something is under way
            }
        };

        abstract void happen(RefusingDeviceTest test);
    }

    private record Case(Side side, List<String> refused, Event event) {
        /** Whether the peer might still write, for all that the target knows. */
        boolean isUnproven() {
            return side == Side.TARGET && refused.contains(DESTROY);
        }

        /** Whether the writer's device might still read what it was to write. */
        boolean mayBeRead() {
            return side == Side.WRITER && event == Event.PATH_BREAKS && refused.size() == 2;
        }
    }

    static Stream<Case> cases() {
        return Stream.of(Side.values())
                .flatMap(side -> Stream.of(List.of(STOP), List.of(DESTROY), List.of(STOP, DESTROY))
                        .flatMap(calls -> Stream.of(Event.values()).map(event -> new Case(side, calls, event))));
    }

    private final LoopbackVerbs verbs = new LoopbackVerbs(null, "loop0");
    private final DrivenEngine writer = open("verbs", "tcp");
    private final DrivenEngine target = open("verbs", "tcp");
    private final DrivenEngine other = open("tcp");
    private final DeviceConnection byVerbs = new DeviceConnection(writer, target);

    private DrivenEngine open(String... transports) {
        return DeviceConnection.open(verbs, transports);
    }

    @AfterEach
    void close() {
        verbs.refuse(Side.WRITER);
        verbs.refuse(Side.TARGET);
        writer.close();
        target.close();
        other.close();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldHarmNothingElse(Case given) {
        assertThat(byVerbs.peer.transport()).isEqualTo("verbs");
        byVerbs.shouldWrite(1);
        DrivenEngine faulty = given.side == Side.WRITER ? writer : target;
        boolean ends = given.side == Side.WRITER && given.event == Event.WRITER_ENDS;
        DeviceConnection held = ends ? null : new DeviceConnection(faulty, other);
        verbs.refuse(given.side, given.refused.toArray(String[]::new));
        given.event.happen(this);
        awaitRefusals(given);
        if (!ends) {
            held.shouldWrite(2);
            new DeviceConnection(faulty, other).shouldWrite(3);
            new DeviceConnection(other, faulty).shouldWrite(4);
        }
        if (given.isUnproven()) {
            assertThat(target.closedAdmissions).as("what is not proven").isEmpty();
        }
        if (given.mayBeRead()) {
            assertThat(writer.lost).as("what may be read").isEmpty();
            assertThat(writer.failed).isEmpty();
        }
        verbs.refuse(given.side);
        if (given.mayBeRead()) {
            writer.await("the loss", () -> !writer.lost.isEmpty() && writer.failed.containsKey(9L));
        }
        if (given.isUnproven() || given.event == Event.TARGET_REVOKES) {
            target.await("the proof", () -> target.closedAdmissions.containsKey(byVerbs.admission.id()));
        }
    }

    /** A target asks its device again and again; so does a writer whose pages may be read, and others once. Then the end has been seen, or the loss. */
    private void awaitRefusals(Case given) {
        boolean isDestroying = given.refused.contains(DESTROY);
        int refusals = given.isUnproven() || given.mayBeRead() ? 3 : isDestroying ? 1 : 0;
        DrivenEngine other = given.event == Event.WRITER_ENDS ? target : writer;
        DrivenEngine.awaitBoth("refusals", target, other, () -> verbs.refusals() >= refusals && hasEnded(given));
    }

    private boolean hasEnded(Case given) {
        boolean isProven = target.closedAdmissions.containsKey(byVerbs.admission.id());
        return switch (given.event) {
            case WRITER_LEAVES, WRITER_ENDS -> isProven || given.isUnproven();
            case TARGET_REVOKES, PATH_BREAKS ->
                !writer.lost.isEmpty() || byVerbs.peer.transport().equals("tcp") || given.mayBeRead();
        };
    }
}
