package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.socket.ControlRecord;
import java.lang.foreign.MemorySegment;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * The last use of an admission is allowed before, while and after its link ends, in each state of the link and for each
 * way to end it: the end is reported once, whichever event is the later one. A link that was never ready gave its key
 * back, and an admission that no further link might use stayed open.
 */
final class LastUsesTest extends SocketLinksBed {
    private enum LinkState {
        CLAIMED,
        ATTACHED,
        READY
    }

    private enum LinkEnd {
        HANG_UP,
        GARBAGE,
        NOT_IN_TIME,
        REVOKED
    }

    private enum Order {
        LAST_USE_FIRST,
        LINK_ENDS_FIRST,
        NO_LAST_USE
    }

    private record Case(String transport, LinkState state, LinkEnd end, Order order) {
        /** A peer that is ready in time may stay. */
        boolean ends() {
            return state != LinkState.READY || end != LinkEnd.NOT_IN_TIME;
        }
    }

    static Stream<Case> cases() {
        return Stream.of(MAPPED, SENT)
                .flatMap(transport -> Stream.of(LinkState.values())
                        .flatMap(state -> Stream.of(LinkEnd.values())
                                .flatMap(end -> Stream.of(Order.values())
                                        .map(order -> new Case(transport, state, end, order)))))
                .filter(Case::ends);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldEndTheAdmissionWithItsLinkOnce(Case given) {
        int peer = link(given);
        if (given.order == Order.LAST_USE_FIRST) {
            admission.allowNoFurtherLink();
        }
        end(peer, given.end);
        if (given.order == Order.LINK_ENDS_FIRST) {
            assertThat(admission.link() == null || !port.closed.isEmpty()).isTrue();
            admission.allowNoFurtherLink();
        }
        if (given.order == Order.LAST_USE_FIRST || given.state == LinkState.READY) {
            assertThat(port.closed).hasSize(1);
        } else {
            assertThat(port.closed)
                    .as("another link may come, or the engine ends it")
                    .isEmpty();
            assertThat(admission.link()).isNull();
        }
    }

    private int link(Case given) {
        int peer = peer(KEY);
        if (given.state != LinkState.CLAIMED) {
            attach(peer, 0, given.transport);
        }
        if (given.state == LinkState.READY) {
            ready(peer, 0);
        }
        assertThat(admission.link()).isNotNull();
        return peer;
    }

    private void end(int peer, LinkEnd how) {
        switch (how) {
            case HANG_UP -> {}
            case GARBAGE -> say(peer, ControlRecord.NOTICE, 9, MemorySegment.NULL);
            case NOT_IN_TIME -> {
                nowNs += CONNECT_LIMIT_NS + AdmittedLink.NEXT_TRY_NS + 1;
                work();
            }
            case REVOKED -> admission.link().revoke("revoked");
        }
        LIB_C.close(peer);
        work();
    }
}
