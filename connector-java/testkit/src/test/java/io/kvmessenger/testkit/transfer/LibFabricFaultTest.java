package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.transfer.ProviderWires.Fault;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * What an engine does when a provider of libfabric's refuses, fails or says what cannot be. A write that is refused for now costs
 * time. Anything else ends the path and with it the peer, since nothing says which of its writes has arrived: each request ends
 * once, with a reason; nothing lands after the admission has ended; other peers go on, and the next connection works.
 */
@Timeout(900)
final class LibFabricFaultTest extends WriterAndTarget {
    private static final long CONNECT_LIMIT_NS = 60_000_000_000L;
    /** Where it is waited for. */
    private static final long SHORT_LIMIT_NS = 4_000_000_000L;

    private static final int EIO = 5;
    private static final int EBUSY = 16;
    private static final int WRITES = 8;
    /** That an engine makes before it takes an endpoint for one that cannot be closed. */
    private static final int CLOSE_TRIES = 8;

    private static final int[] ALL_PAGES = IntStream.range(0, PAGE_COUNT).toArray();

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final FaultyProvider provider = new FaultyProvider(seed);
    private final Random random = new Random(seed);

    private long connectLimitNs = CONNECT_LIMIT_NS;
    private long lastCookie;

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return TransferOptions.defaults()
                .withTransports(transport())
                .with(TransferOptions.CONNECT_LIMIT_NS, connectLimitNs);
    }

    @Override
    protected DrivenEngine open(String name) {
        return open(name, options());
    }

    private DrivenEngine open(String name, TransferOptions options) {
        TransferEngine engine = TransferEngines.open(options, new FfmLibC(), provider::library);
        return new DrivenEngine(options, name, MEMORY_BYTES, engine);
    }

    @Override
    @BeforeEach
    void connect() {
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        super.connect();
    }

    @Override
    @AfterEach
    void close() {
        super.close();
        assertThat(provider.violations()).isEmpty();
        assertThat(provider.held()).as("left open").isEmpty();
    }

    private void connectWithAShortLimit(String... transports) {
        close();
        connectLimitNs = SHORT_LIMIT_NS;
        writer = open("writer", options().withTransports(transports));
        target = open("target", options().withTransports(transports));
        writer.alongside(target);
        target.alongside(writer);
        reconnect();
        assertThat(peer.transport()).isEqualTo(TransferOptions.LIBFABRIC);
        moveAll();
    }

    /** All pages in random order, in some requests, each looked at when all have arrived. */
    private void moveAll() {
        fillSource(random);
        int[] from = shuffled(PAGE_COUNT, random);
        int[] to = shuffled(PAGE_COUNT, random);
        long filled = ++lastCookie;
        ImmWindow window = grant(everything(), PAGE_COUNT, filled);
        long first = lastCookie + 1;
        for (int i = 0; i < WRITES; i++) {
            int begin = i * PAGE_COUNT / WRITES;
            int end = (i + 1) * PAGE_COUNT / WRITES;
            writer.submit(
                    peer,
                    paged(window, Arrays.copyOfRange(from, begin, end), Arrays.copyOfRange(to, begin, end)),
                    ++lastCookie);
        }
        DrivenEngine.awaitBoth("all pages", target, writer, () -> target.filled.contains(filled));
        DrivenEngine.awaitBoth("all completions", writer, target, () -> haveEnded(first));
        for (int i = 0; i < PAGE_COUNT; i++) {
            assertThat(pageArrived(from[i], to[i])).as("page %d", i).isTrue();
        }
        assertThat(window.arrivedWeight()).isEqualTo(PAGE_COUNT);
        writer.engine().disallow(peer, remote(window));
        window.close(true);
    }

    private boolean haveEnded(long first) {
        return IntStream.rangeClosed((int) first, (int) lastCookie)
                .allMatch(cookie -> writer.endings.containsKey((long) cookie));
    }

    private void assertNothingLost() {
        assertThat(writer.failed).isEmpty();
        assertThat(writer.lost).isEmpty();
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(target.overshot).isEmpty();
        assertThat(target.engine().counters().of(TransferCounter.STRAYS)).isZero();
    }

    /** Another connection of the same engines, after whatever happened to the first. */
    private void reconnect() {
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.await("an answer", () -> writer.ready.contains(peer) || writer.lost.containsKey(peer.id()));
    }

    private void shouldMoveAllOverANewConnection() {
        reconnect();
        assertThat(writer.lost).doesNotContainKey(peer.id());
        moveAll();
    }

    /** A write is offered again within a millisecond or so: a storm of a thousand refusals is over soon. */
    @Timeout(900)
    @ParameterizedTest
    @ValueSource(ints = {Errno.EAGAIN, Errno.ENOMEM})
    void shouldOfferAgainWhatIsRefusedForNow(int errno) {
        for (int round = 0; round < 5; round++) {
            provider.refuse("writedata", errno, random.nextInt(40), 200);
            moveAll();
        }
        DrivenEngine.awaitBoth("the storm's end", writer, target, () -> {
            if (!provider.hasRefused()) {
                moveAll();
            }
            return provider.hasRefused();
        });
        assertNothingLost();
    }

    @Test
    void shouldReadOnWhenOnlySomeCompletionsAreReported() {
        provider.make(Fault.SHORT_READS);
        for (int round = 0; round < 5; round++) {
            moveAll();
        }
        assertNothingLost();
    }

    /** Submits some requests, one of which meets the fault; returns when the peer is lost. */
    private TransferFault loseThePeer() {
        return loseThePeer(() -> {});
    }

    private TransferFault loseThePeer(Runnable onceLost) {
        Peer lost = peer;
        Admission ended = admission;
        ImmWindow window = grant(everything(), Long.MAX_VALUE, ++lastCookie);
        fillSource(random);
        long first = lastCookie + 1;
        for (int i = 0; i < WRITES; i++) {
            PagedWrites write = paged(window, ALL_PAGES, shuffled(PAGE_COUNT, random));
            if (writer.engine().submit(lost, write, lastCookie + 1) == TransferEngine.ACCEPTED) {
                lastCookie++;
            }
        }
        DrivenEngine.awaitBoth("the loss", writer, target, () -> writer.lost.containsKey(lost.id()));
        DrivenEngine.awaitBoth(
                "the end of the admission", target, writer, () -> target.closedAdmissions.containsKey(ended.id()));
        onceLost.run();
        DrivenEngine.awaitBoth("all requests", writer, target, () -> haveEnded(first));
        assertThat(writer.endings.values()).containsOnly(1);
        String reason = writer.lost.get(lost.id()).detail();
        assertThat(writer.failed)
                .allSatisfy((cookie, failure) -> assertThat(failure.detail()).isEqualTo(reason));
        assertThat(window.arrivedWeight()).isLessThanOrEqualTo((long) WRITES * PAGE_COUNT);
        long arrived = window.arrivedWeight();
        target.memory().fill(GUARD);
        try (DrivenEngine other = open("other")) {
            seeAPage(other);
        } finally {
            target.alongside(writer);
        }
        assertThat(isGuard(target.memory().asSlice(PAGE_BYTES)))
                .as("nothing lands any more")
                .isTrue();
        assertThat(window.arrivedWeight()).isEqualTo(arrived);
        window.close(true);
        return writer.lost.get(lost.id()).fault();
    }

    /** Another writer's first page arrives. */
    private void seeAPage(DrivenEngine other) {
        Admission own = target.engine().admit("other");
        other.alongside(target);
        Peer second = other.engine().connect(target.engine().address(), own.key(), "target");
        long filled = ++lastCookie;
        WindowArea area = WindowArea.of(target.region().descriptor(), pages(0));
        ImmWindow window = target.engine().openWindow(own, area, 1, filled);
        RemoteWindow remote = other.engine().allow(second, window.imm(), area);
        DrivenEngine.awaitBoth("the other writer", other, target, () -> other.ready.contains(second));
        other.submit(
                second, new SingleWrite(other.region(), 0, target.region().descriptor(), 0, PAGE_BYTES, remote, 1), 1);
        DrivenEngine.awaitBoth("its page", target, other, () -> target.filled.contains(filled));
        window.close(true);
    }

    @ParameterizedTest
    @EnumSource(names = {"FAILED_WRITE", "ERROR_OF_NOTHING", "COMPLETION_OF_NOTHING", "COMPLETED_TWICE"})
    void shouldEndThePeerWhoseCompletionsAreWrong(Fault fault) {
        moveAll();
        provider.make(fault);
        assertThat(loseThePeer()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(provider.hasDone(fault)).isTrue();
        assertThat(writer.lost.get(peer.id()).detail()).contains("libfabric's faulty");
        shouldMoveAllOverANewConnection();
    }

    @Test
    void shouldEndThePeerAtTheTargetThatHearsOfAnError() {
        moveAll();
        provider.make(Fault.ERROR_AT_THE_TARGET);
        Admission ended = admission;
        // The writer hears the target's word, or of a write that finds no endpoint any more.
        assertThat(loseThePeer()).isIn(TransferFault.DISCONNECTED, TransferFault.PEER_CLOSED);
        assertThat(target.closedAdmissions.get(ended.id())).contains("libfabric reports of the peer's path");
        shouldMoveAllOverANewConnection();
    }

    @Test
    void shouldEndThePeerWhoseWritesAreRefusedForGood() {
        moveAll();
        provider.refuse("writedata", EIO, 3, 1);
        assertThat(loseThePeer()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(writer.lost.get(peer.id()).detail()).contains("as it was told to");
        shouldMoveAllOverANewConnection();
    }

    @Test
    void shouldEndThePeerWhoseWritesAreRefusedForNowWithoutAnEnd() {
        connectWithAShortLimit(TransferOptions.LIBFABRIC);
        provider.refuse("writedata", Errno.EAGAIN, 3, Integer.MAX_VALUE);
        assertThat(loseThePeer(() -> provider.stopRefusing("writedata"))).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(writer.lost.get(peer.id()).detail()).endsWith("no write was taken any more");
        shouldMoveAllOverANewConnection();
    }

    @Test
    void shouldEndThePeerWhoseQueueCannotBeRead() {
        moveAll();
        provider.refuse("cq_readerr", Errno.EAGAIN, 0, 1);
        provider.make(Fault.FAILED_WRITE);
        loseThePeer();
        assertThat(writer.lost.get(peer.id()).detail()).contains("the queue of completions cannot be read");
        shouldMoveAllOverANewConnection();
    }

    /** Nothing tells of it but what the target has counted. */
    @Test
    void shouldEndThePeerWhosePathSwallows() {
        connectWithAShortLimit(TransferOptions.LIBFABRIC);
        provider.make(Fault.SWALLOWED);
        long beganNs = System.nanoTime();
        assertThat(loseThePeerWhoseWritesComplete()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(System.nanoTime() - beganNs).isGreaterThan(SHORT_LIMIT_NS);
        assertThat(writer.lost.get(peer.id()).detail()).matches(".*faulty: \\d+ writes do not arrive");
        provider.stop(Fault.SWALLOWED);
        shouldMoveAllOverANewConnection();
    }

    private TransferFault loseThePeerWhoseWritesComplete() {
        ImmWindow window = grant(everything(), PAGE_COUNT, ++lastCookie);
        long filled = lastCookie;
        writer.submit(peer, paged(window, ALL_PAGES, ALL_PAGES), ++lastCookie);
        long cookie = lastCookie;
        writer.await("its completion, which says nothing", () -> writer.completed.contains(cookie));
        DrivenEngine.awaitBoth(
                "both ends",
                writer,
                target,
                () -> writer.lost.containsKey(peer.id()) && target.closedAdmissions.containsKey(admission.id()));
        assertThat(window.arrivedWeight()).isZero();
        assertThat(target.filled).doesNotContain(filled);
        window.close(true);
        return writer.lost.get(peer.id()).fault();
    }

    /** Each call that opening needs, the first time and the next. */
    @ParameterizedTest
    @ValueSource(strings = {"getinfo", "fabric", "domain", "mr_reg"})
    void shouldLeaveNothingBehindWhenItCannotOpen(String function) {
        int held = provider.held().size();
        provider.refuse(function, Errno.ENOMEM, 0, 1);
        assertThatThrownBy(() -> open("third"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("no transport can be opened: libfabric")
                .hasMessageNotContaining("\n");
        assertThat(provider.hasRefused()).isTrue();
        assertThat(provider.held()).hasSize(held);
        moveAll();
    }

    /** At the writer (the first call) and at the target (the second). */
    @ParameterizedTest
    @ValueSource(strings = {"cq_open", "av_open", "endpoint", "bind", "enable", "getname", "av_insert", "writedata"})
    void shouldLoseOnlyTheConnectionThatCannotBeOpened(String function) {
        moveAll();
        int calls = function.equals("bind") ? 4 : function.equals("writedata") ? 1 : 2;
        int held = provider.held().size();
        for (int skipped = 0; skipped < calls; skipped++) {
            Peer before = peer;
            Admission admitted = admission;
            provider.refuse(function, EIO, skipped, 1);
            reconnect();
            assertThat(provider.hasRefused()).isTrue();
            assertThat(writer.lost).containsOnlyKeys(peer.id());
            assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
            assertThat(writer.lost.get(peer.id()).detail())
                    .startsWith("libfabric")
                    .doesNotContain("\n");
            target.engine().revoke(admission);
            DrivenEngine.awaitBoth(
                    "what is left", writer, target, () -> provider.held().size() == held);
            writer.lost.clear();
            peer = before;
            admission = admitted;
            moveAll();
        }
    }

    @Test
    void shouldCloseAgainWhatCouldNotBeClosed() {
        moveAll();
        provider.refuse("close", EBUSY, 0, 2);
        writer.engine().disconnect(peer);
        DrivenEngine.awaitBoth(
                "the end of the admission", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(provider.hasRefused()).isTrue();
        shouldMoveAllOverANewConnection();
        provider.refuse("close", EBUSY, 0, 2);
        target.engine().revoke(admission);
        DrivenEngine.awaitBoth(
                "the end of the second", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(provider.hasRefused()).isTrue();
        shouldMoveAllOverANewConnection();
    }

    /** Its peer could write on, and until the endpoint is closed nothing proves that it does not. Other peers go on. */
    @Test
    void shouldGoOnWhereAnEndpointCannotBeClosed() {
        moveAll();
        Admission unproven = admission;
        provider.refuse("close", EBUSY, 0, CLOSE_TRIES);
        target.engine().revoke(unproven);
        DrivenEngine.awaitBoth("the refusals", target, writer, provider::hasRefused);
        assertThat(target.closedAdmissions).isEmpty();
        shouldMoveAllOverANewConnection();
        DrivenEngine.awaitBoth("the proof", target, writer, () -> target.closedAdmissions.containsKey(unproven.id()));
    }

    /** Nothing was told as sent yet, so nothing can be missing. */
    @Test
    void shouldTakeTcpWhenThePathFailsBeforeItsFirstWrite() {
        close();
        writer = open("writer", options().withTransports(TransferOptions.LIBFABRIC, TransferOptions.TCP));
        target = open("target", options().withTransports(TransferOptions.LIBFABRIC, TransferOptions.TCP));
        reconnect();
        assertThat(peer.transport()).isEqualTo(TransferOptions.LIBFABRIC);
        provider.refuse("writedata", EIO, 0, 1);
        moveAll();
        assertThat(peer.transport()).isEqualTo(TransferOptions.TCP);
        assertNothingLost();
    }

    @Test
    void shouldTakeTcpForTheNextSessionWhereNothingComesThrough() {
        connectWithAShortLimit(TransferOptions.LIBFABRIC, TransferOptions.TCP);
        provider.make(Fault.FAILED_WRITE);
        loseThePeer();
        provider.make(Fault.SWALLOWED);
        reconnect();
        assertThat(peer.transport()).isEqualTo(TransferOptions.TCP);
        writer.lost.clear();
        writer.failed.clear();
        moveAll();
        assertNothingLost();
    }
}
