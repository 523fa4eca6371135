package io.kvmessenger.transfer.path;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeLinks.FakeChannel;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Whatever ends the paths, and whatever is refused when they are released: their end is reported, once. */
final class WriterPathsTest {
    private static final int DEADLINE_NS = 1000;
    private static final int BREAKS_A_RULE = 20;
    private static final int FINDS_NO_ROOM = 21;

    private enum End {
        OVERDUE("UNREACHABLE late") {
            @Override
            void of(Paths paths) {
                paths.doWork(DEADLINE_NS + 1);
            }
        },
        LOST_AT_WORK("DISCONNECTED lost") {
            @Override
            void of(Paths paths) {
                paths.isBroken = true;
                paths.doWork(0);
            }
        },
        RECORD_THAT_BREAKS_A_RULE("PROTOCOL a rule") {
            @Override
            void of(Paths paths) {
                paths.onRecord(BREAKS_A_RULE, MemorySegment.NULL, 0);
            }
        },
        RECORD_FOR_WHICH_THERE_IS_NO_ROOM("UNREACHABLE no room") {
            @Override
            void of(Paths paths) {
                paths.onRecord(FINDS_NO_ROOM, MemorySegment.NULL, 0);
            }
        },
        REFUSED("NOT_ADMITTED refused") {
            @Override
            void of(Paths paths) {
                paths.onRefused(TransferFault.NOT_ADMITTED, "refused");
            }
        },
        ERROR("DISCONNECTED ") {
            @Override
            void of(Paths paths) {
                paths.onError(new IllegalStateException("an error"));
            }
        };

        private final String report;

        End(String report) {
            this.report = report;
        }

        abstract void of(Paths paths);
    }

    private record Case(End end, boolean open, boolean settles, RuntimeException refusal) {}

    static Stream<Case> cases() {
        return Stream.of(End.values())
                .flatMap(end -> Stream.of(false, true)
                        .flatMap(open -> Stream.of(false, true)
                                .flatMap(settles -> Stream.of(
                                                null,
                                                new IllegalStateException("the device keeps it"),
                                                new ArithmeticException("a fault of this engine"))
                                        .map(refusal -> new Case(end, open, settles, refusal)))))
                .filter(each -> !(each.open && each.end == End.OVERDUE));
    }

    /** Paths of which a test says what becomes of them. */
    private static final class Paths extends WriterPaths implements Endpoint {
        private final Case given;
        private boolean isBroken;

        Paths(Case given, PathEvents events, OutboundChannel channel) {
            super(channel, events, new Figures(), DEADLINE_NS);
            this.given = given;
            if (given.open) {
                open(this);
            }
        }

        @Override
        protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
            if (kind == BREAKS_A_RULE) {
                throw new IllegalArgumentException("a rule");
            }
            throw new IllegalStateException("no room");
        }

        @Override
        protected int connect(long nowNs) {
            return serve(nowNs);
        }

        @Override
        protected int serve(long nowNs) {
            if (isBroken) {
                lose(TransferFault.DISCONNECTED, "lost");
            }
            return 0;
        }

        @Override
        protected String overdue() {
            return "late";
        }

        @Override
        protected Endpoint settle() {
            return given.settles ? this : null;
        }

        @Override
        protected void release() {
            if (given.refusal != null) {
                throw given.refusal;
            }
        }

        @Override
        public int post(WriteBatch batch, long postId) {
            return 0;
        }
    }

    private static final class Reports implements PathEvents {
        private final List<String> all = new ArrayList<>();

        @Override
        public void onReady() {}

        @Override
        public void onFailed(TransferFault fault, String detail) {
            all.add(fault + " " + detail);
        }

        @Override
        public void onPathOpened(Endpoint path) {}

        @Override
        public void onPathLost(Endpoint path) {
            all.add("settled");
        }

        @Override
        public void onSent(long postId) {}
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldReportTheEndOnce(Case given) {
        Reports reports = new Reports();
        Paths paths = new Paths(given, reports, new FakeChannel("test"));
        given.end.of(paths);
        for (End later : End.values()) {
            later.of(paths);
        }
        boolean isSettled = given.open && given.settles && given.refusal == null;
        assertThat(reports.all).hasSize(isSettled ? 2 : 1);
        assertThat(reports.all.getFirst())
                .as("posts of a path that may not be closed are not sent again")
                .isEqualTo(isSettled ? "settled" : reports.all.getLast());
        assertThat(reports.all.getLast())
                .startsWith(given.end.report)
                .contains(given.refusal == null ? "" : given.refusal.getMessage());
    }
}
