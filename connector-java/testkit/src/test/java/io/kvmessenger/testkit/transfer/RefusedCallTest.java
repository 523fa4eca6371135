package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** One call that the operating system refuses harms the connection that it was made for, and no other. */
@Timeout(900)
final class RefusedCallTest {
    private static final long MEMORY_BYTES = 1 << 16;
    /** A peer that is not answered waits so long. */
    private static final long CONNECT_LIMIT_NS = 4_000_000_000L;

    private final RefusingLibC refusing = new RefusingLibC();
    private DrivenEngine faulty;
    private DrivenEngine steady;
    private DrivenEngine other;
    private long cookie;

    @AfterEach
    void close() {
        faulty.close();
        steady.close();
        other.close();
    }

    private void open(String transport) {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(transport)
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
        faulty = new DrivenEngine(options, "faulty", MEMORY_BYTES, refusing.libC());
        steady = new DrivenEngine(options, "steady", MEMORY_BYTES);
        other = new DrivenEngine(options, "other", MEMORY_BYTES);
    }

    /** A writer's connection to a target: what it writes there arrives, or it is lost. */
    private final class Connection {
        private final DrivenEngine writer;
        private final DrivenEngine target;
        private final Admission admission;
        private final Peer peer;

        Connection(DrivenEngine writer, DrivenEngine target) {
            this.writer = writer;
            this.target = target;
            admission = target.engine().admit("writer");
            peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        }

        /** A connection that needs longer than the limit is tried again: that is the machine's fault. */
        Connection ready() {
            awaitReadyOrLost();
            if (!isLost()) {
                return this;
            }
            assertThat(writer.lost.get(peer.id()).detail()).contains(" in time");
            return new Connection(writer, target).ready();
        }

        boolean isLost() {
            return writer.lost.containsKey(peer.id());
        }

        void awaitReadyOrLost() {
            DrivenEngine.awaitBoth("readiness or loss", writer, target, () -> writer.ready.contains(peer) || isLost());
        }

        void shouldWrite() {
            WindowRanges ranges = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
            long window = submit(ranges);
            DrivenEngine.awaitBoth(
                    "what was written",
                    writer,
                    target,
                    () -> target.filled.contains(window) && writer.completed.contains(window));
            assertThat(isLost()).isFalse();
        }

        long submit(WindowRanges ranges) {
            ImmWindow window = target.openWindow(admission, ranges, 1, ++cookie);
            RemoteWindow remote = writer.engine()
                    .allow(peer, window.imm(), WindowArea.of(target.region().descriptor(), ranges));
            writer.submit(
                    peer,
                    new SingleWrite(writer.region(), 0, target.region().descriptor(), 0, 4096, remote, 1),
                    cookie);
            return cookie;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "tcp, accept4, EMFILE",
        "tcp, epoll_ctl, ENOMEM",
        "tcp, sendmsg, ENOMEM",
        "tcp, readv, ENOMEM",
        "shm, accept4, EMFILE",
        "shm, epoll_ctl, ENOMEM",
        "shm, memfd_create, EMFILE",
        "shm, mmap, ENOMEM",
        "shm, sendmsg, ENOMEM",
        "shm, getsockopt, EMFILE",
    })
    void shouldHarmOneWriterOnly(String transport, String function, String errno) {
        open(transport);
        Connection held = new Connection(steady, faulty).ready();
        held.shouldWrite();
        refusing.refuseNext(function, errno.equals("EMFILE") ? Errno.EMFILE : Errno.ENOMEM);
        Connection struck = new Connection(other, faulty);
        struck.awaitReadyOrLost();
        if (!struck.isLost()) {
            struck.submit(WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES));
        }
        DrivenEngine.awaitBoth("the refusal", other, faulty, refusing::hasRefused);
        held.shouldWrite();
        new Connection(other, faulty).ready().shouldWrite();
        held.shouldWrite();
    }

    @ParameterizedTest
    @CsvSource({
        "tcp, socket, EMFILE",
        "tcp, epoll_ctl, ENOMEM",
        "tcp, sendmsg, ENOMEM",
        "tcp, recvmsg, ENOMEM",
        "shm, socket, EMFILE",
        "shm, mmap, ENOMEM",
        "shm, sendmsg, ENOMEM",
    })
    void shouldHarmOneTargetOnly(String transport, String function, String errno) {
        open(transport);
        Connection held = new Connection(faulty, steady).ready();
        held.shouldWrite();
        refusing.refuseNext(function, errno.equals("EMFILE") ? Errno.EMFILE : Errno.ENOMEM);
        Connection struck = new Connection(faulty, other);
        struck.awaitReadyOrLost();
        if (!struck.isLost()) {
            struck.submit(WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES));
        }
        DrivenEngine.awaitBoth("the refusal", faulty, other, refusing::hasRefused);
        held.shouldWrite();
        new Connection(faulty, other).ready().shouldWrite();
        held.shouldWrite();
    }
}
