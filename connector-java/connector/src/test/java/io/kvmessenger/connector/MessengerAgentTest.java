package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.KvCache;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.Arena;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** How the messenger's thread waits, ends and stays alive, on a clock and ports of the test's. */
@Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
final class MessengerAgentTest {
    private static final int PAGE_TOKENS = 4;
    private static final int PAGE_COUNT = 8;
    private static final int PAGE_BYTES = 2 * PAGE_TOKENS;
    private static final long HEARTBEAT_NS = 1_000_000_000L;
    /** So long that a machine with much other work to do does not reach it. */
    private static final Duration STOP_LIMIT = Duration.ofMinutes(10);

    private static final ProtocolLimits LIMITS = new ProtocolLimits(
            30 * HEARTBEAT_NS, 30 * HEARTBEAT_NS, 10 * HEARTBEAT_NS, HEARTBEAT_NS, 10 * HEARTBEAT_NS);

    private final AtomicLong now = new AtomicLong(1);
    private volatile RuntimeException fault;
    private final List<Long> awaited = Collections.synchronizedList(new ArrayList<>());
    private final List<Throwable> faults = Collections.synchronizedList(new ArrayList<>());
    private final CountDownLatch mayClose = new CountDownLatch(1);
    private final CountDownLatch closing = new CountDownLatch(1);
    private final RegionDescriptor descriptor =
            new RegionDescriptor(1, 2L * PAGE_BYTES * PAGE_COUNT, RegionDescriptor.VERSION, false);
    private final Memory memory = Memory.host(Arena.ofAuto().allocate(descriptor.lengthBytes()));
    private final TransferEngine transfer = port(TransferEngine.class);
    private final PeerWarnings warnings = new PeerWarnings(port(EngineEvents.class), now::get);
    private final Sessions sessions = new Sessions(
            new MessengerIdentity("decoder", 1, new byte[0]),
            port(ControlNetwork.class),
            LIMITS,
            port(Tally.class),
            new SplittableRandom(1),
            warnings);
    private final KvCache cache = new KvCache(
            new Decoder.Cache(
                    geometry(), List.of(new RankMemory(List.of(port(Region.class)))), List.of(), ChecksumMode.OFF),
            sessions,
            LIMITS,
            new KvPorts(
                    transfer,
                    port(EngineEvents.class),
                    port(EngineIntake.class),
                    port(LayerProgress.class),
                    port(Tally.class),
                    new History(),
                    now::get,
                    new SplittableRandom(1)));
    private final Messenger messenger =
            new Messenger(sessions, cache, new Messenger.Ports(transfer, port(Tally.class), warnings, now::get));
    private final Inbox inbox = new Inbox(now::get, () -> {});
    private final MessengerAgent agent = new MessengerAgent(transfer, messenger, inbox, now::get, faults::add);

    private static KvGeometry geometry() {
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, PAGE_TOKENS, PageLayout.HND, 2, PAGE_COUNT);
        List<LayerGeometry> layers = List.of(
                new LayerGeometry("layers.0", 0, PAGE_BYTES, PAGE_BYTES),
                new LayerGeometry("layers.1", (long) PAGE_BYTES * PAGE_COUNT, PAGE_BYTES, PAGE_BYTES));
        return new KvGeometry("m", Sharding.ALONE, List.of(group), List.of(new RankGeometry(0, 0, layers)));
    }

    /** A port that answers nothing, except for what this test looks at. */
    private <T> T port(Class<T> of) {
        return of.cast(Proxy.newProxyInstance(of.getClassLoader(), new Class<?>[] {of}, (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "await" -> awaited.add((Long) arguments[0]);
                case "poll" -> {
                    if (fault != null) {
                        throw fault;
                    }
                }
                case "close" -> {
                    if (of == TransferEngine.class) {
                        closing.countDown();
                        mayClose.await();
                    }
                }
                case "memory" -> {
                    return memory;
                }
                case "descriptor" -> {
                    return descriptor;
                }
                default -> {}
            }
            Class<?> type = method.getReturnType();
            if (type == boolean.class) {
                return false;
            }
            if (type == long.class) {
                return 1L;
            }
            return type == int.class ? 0 : null;
        }));
    }

    private void fetch(long limitNs) {
        cache.onCommand(new EngineCommand.Fetch(
                "r",
                "t",
                List.of(new EngineCommand.PrefillerAddress("host", 7, "")),
                2 * PAGE_TOKENS,
                0,
                List.of(new int[] {1, 2}),
                ContextSlots.NO_SLOT,
                List.of(),
                limitNs,
                "",
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
    }

    /** A longer wait would send heartbeats late, so that a peer takes this side for dead, and end requests late. */
    @ParameterizedTest
    @ValueSource(longs = {1, 1_000, 1_000_000, 300_000_000, 999_999_999, 1_000_000_001L, 5_000_000_000L})
    void shouldWaitNoLongerThanUntilTheNextTimer(long limitNs) {
        fetch(limitNs);
        agent.doWork();
        long dueNs = messenger.nextDeadlineNs();
        assertThat(dueNs - now.get()).as("a timer is due then").isLessThanOrEqualTo(limitNs);
        for (long passedNs : new long[] {0, limitNs / 2}) {
            now.addAndGet(passedNs);
            agent.idle(() -> false);
            assertThat(awaited.getLast()).isEqualTo(messenger.nextDeadlineNs() - now.get());
        }
    }

    /** Its caller frees the KV cache's memory when it hears that the messenger is closed. */
    @Test
    void shouldSayThatItHasStoppedOnlyWhenNothingReadsOrWritesPagesAnyMore() throws InterruptedException {
        agent.start();
        assertThat(agent.stop(Duration.ofMillis(1))).isFalse();
        closing.await();
        assertThat(agent.stop(Duration.ofMillis(1)))
                .as("the transfer engine is closing")
                .isFalse();
        mayClose.countDown();
        assertThat(agent.stop(STOP_LIMIT)).isTrue();
        assertThat(agent.stop(Duration.ZERO)).isTrue();
    }

    /** A messenger of which each duty cycle fails would be called healthy, and get requests. */
    @Test
    void shouldCallNoDutyCycleSoundThatHasFailed() {
        agent.start();
        agent.stop(Duration.ZERO);
        mayClose.countDown();
        assertThat(agent.stop(STOP_LIMIT)).isTrue();
        fault = new IllegalStateException("put in by a test");
        assertThat(agent.doWork()).as("it goes on").isPositive();
        assertThat(agent.healthProblem(HEARTBEAT_NS)).isEmpty();
        now.addAndGet(HEARTBEAT_NS + MessengerAgent.STUCK_LIMIT_NS + 1);
        assertThat(agent.doWork()).isPositive();
        assertThat(agent.healthProblem(HEARTBEAT_NS).orElseThrow()).contains("stuck", "put in by a test");
        assertThat(faults).hasSize(2);
        fault = null;
        agent.doWork();
        assertThat(agent.healthProblem(HEARTBEAT_NS)).isEmpty();
    }
}
