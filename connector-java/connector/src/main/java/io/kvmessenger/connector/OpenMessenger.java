package io.kvmessenger.connector;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.connector.OpenRequest.ContextMemory;
import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.connector.metrics.MessengerMetrics;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.hooks.LayerCounter;
import io.kvmessenger.messenger.KvCache;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferEngine;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * One engine's messenger with all its dependencies: the composition root.
 *
 * <p>Called by the engine's thread; the messenger itself lives on its {@link MessengerAgent}'s thread. It contains no
 * protocol and no policy, only wiring and the order of start and stop.
 */
final class OpenMessenger {
    /** Limit for an answer of the messenger's thread; it never blocks, so this is generous. */
    private static final long ANSWER_LIMIT_MILLIS = 5_000;

    private static final long DRAIN_LIMIT_MILLIS = 2_000;
    private static final long LEAVE_LIMIT_MILLIS = 2_000;
    /** Limit for the end of the last duty cycle, which never blocks but may be slow on a busy machine. */
    private static final long STOP_LIMIT_MILLIS = 5_000;
    /** Keeps the counter alone in its cache lines: the engine writes it while the watcher reads. */
    private static final long COUNTER_ALIGNMENT_BYTES = 128;

    private static final int NOT_LISTENING = -1;
    /** Rows of each list on the state page. */
    private static final int STATE_ROWS_MAX = 100;

    private static final NanoClock CLOCK = System::nanoTime;

    private final OpenRequest request;
    private final long incarnation;
    private final CloseOnExec closeOnExec;
    private final EventQueue events;
    private final MessengerMetrics metrics;
    private final MemorySegment counterWord;
    private final MessengerAgent agent;
    private final Inbox inbox;
    private final TransferEngine transfer;
    private final NettyControlNetwork network;
    private final HttpIntake intake;
    private final KvCache cache;
    private final Messenger messenger;
    private final int controlPort;

    private OpenMessenger(OpenRequest request, Deque<AutoCloseable> started) {
        SecureRandom random = new SecureRandom();
        this.request = request;
        this.incarnation = random.nextLong();
        this.closeOnExec = new CloseOnExec(new FfmLibC());
        started.push(closeOnExec);
        this.metrics = metrics(request, closeOnExec);
        started.push(metrics);
        this.events = new EventQueue(metrics, request.timelines(), CLOCK);
        metrics.notes().forEach(note -> events.log(EngineLog.Level.INFO, note));
        this.counterWord = Arena.global().allocate(COUNTER_ALIGNMENT_BYTES, COUNTER_ALIGNMENT_BYTES);
        this.transfer = TransferWiring.open(request);
        started.push(transfer);
        transfer.unavailable().forEach(why -> events.log(EngineLog.Level.WARNING, "a transport is left out: " + why));
        this.inbox = new Inbox(CLOCK, transfer::wake);
        metrics.follow(transfer::counters);
        this.network = new NettyControlNetwork(
                inbox,
                TimeUnit.NANOSECONDS.toMillis(request.limits().connectLimitNs()),
                NettyControlNetwork.LINKS_MAX,
                closeOnExec,
                request.tls().isGiven() ? request.tls().read(Instant.now()) : null);
        started.push(network);
        this.intake = intake(request);
        started.push(intake);
        PeerWarnings warnings = new PeerWarnings(events, CLOCK);
        Sessions sessions = new Sessions(
                new MessengerIdentity(
                        request.engineId(), incarnation, request.sharedSecret().getBytes(StandardCharsets.UTF_8)),
                network,
                request.limits(),
                metrics,
                random,
                warnings);
        this.cache = cache(sessions, random);
        this.messenger = new Messenger(sessions, cache, new Messenger.Ports(transfer, metrics, warnings, CLOCK));
        transfer.notes().forEach(note -> events.log(EngineLog.Level.WARNING, note));
        this.controlPort =
                request.role().listens() ? network.listen(request.listenHost(), request.listenPort()) : NOT_LISTENING;
        this.agent = new MessengerAgent(transfer, messenger, inbox, CLOCK, new FaultLog(events, CLOCK)::add);
        agent.start();
        metrics.watch(() -> agent.healthProblem(request.limits().heartbeatNs()));
        metrics.show(asked -> inbox.add(m -> asked.complete(cache.describe(STATE_ROWS_MAX))));
    }

    private KvCache cache(Sessions sessions, SecureRandom random) {
        return new KvCache(
                new Decoder.Cache(
                        request.geometry(),
                        register(request.memories(), transfer),
                        registerContext(request.context(), transfer),
                        request.checksumMode()),
                sessions,
                request.limits(),
                new KvCache.Ports(
                        transfer,
                        events,
                        intake,
                        new HookedLayerProgress(
                                new LayerCounter(counterWord.asSlice(0, LayerCounter.LENGTH_BYTES)),
                                request.layerCounterLag(),
                                request.geometry().ranks().getFirst().layers().size()),
                        metrics,
                        CLOCK,
                        random));
    }

    private static MessengerMetrics metrics(OpenRequest request, CloseOnExec closeOnExec) {
        return MessengerMetrics.open(
                request.metricsHost(),
                request.metricsPort(),
                request.metricsPeers(),
                request.pageKey(),
                closeOnExec::opened);
    }

    private HttpIntake intake(OpenRequest request) {
        return new HttpIntake(
                request.engineApiUrl(),
                request.engineApiKey(),
                Duration.ofNanos(request.limits().connectLimitNs()),
                Duration.ofNanos(request.limits().fetchLimitNs()),
                this::enqueueFailed);
    }

    /** Any thread. */
    private void enqueueFailed(TransferKey prompt, String reason) {
        inbox.add(m -> cache.onEnqueueFailed(prompt, reason));
    }

    /** Starts everything; on failure closes what had started. */
    static OpenMessenger open(OpenRequest request) {
        Deque<AutoCloseable> started = new ArrayDeque<>();
        try {
            return new OpenMessenger(request, started);
        } catch (RuntimeException failure) {
            for (AutoCloseable part : started) {
                try {
                    part.close();
                } catch (Exception second) {
                    failure.addSuppressed(second);
                }
            }
            throw failure;
        }
    }

    private static List<RankMemory> register(List<List<Memory>> memories, TransferEngine transfer) {
        return memories.stream()
                .map(rank ->
                        new RankMemory(rank.stream().map(transfer::register).toList()))
                .toList();
    }

    private static List<ContextRow> registerContext(List<ContextMemory> context, TransferEngine transfer) {
        return context.stream()
                .map(kind -> new ContextRow(kind.slots(), transfer.register(kind.memory())))
                .toList();
    }

    OpenResult result(long handle) {
        return new OpenResult(
                handle,
                request.engineId(),
                Long.toHexString(incarnation),
                request.reachableHost(),
                controlPort > 0 && request.advertisePort() > 0 ? request.advertisePort() : controlPort,
                request.metricsHost(),
                metrics.port(),
                counterWord.address());
    }

    void submit(byte[] json) {
        List<EngineCommand> commands = CommandReader.read(json);
        for (EngineCommand command : commands) {
            inbox.add(m -> cache.onCommand(command));
        }
    }

    /** Reports events first: the end of every request precedes the report that the messenger has ended. */
    byte[] poll(int capacityBytes) {
        Optional<String> death = agent.death(); // before the events are read: those that precede it are all there
        byte[] reported = events.drain(capacityBytes);
        if (reported.length == 0 && death.isPresent()) {
            throw new RefusedException("the messenger of " + request.engineId() + " is dead: " + death.get());
        }
        return reported;
    }

    /** Blocks until a poll would return something, or the limit has passed. */
    void await(byte[] json) {
        long limitMicros = CommandReader.parse("await", json).integer("limitMicros");
        if (agent.death().isEmpty()) {
            events.await(TimeUnit.MICROSECONDS.toNanos(limitMicros));
        }
    }

    byte[] stats() {
        return metrics.snapshotJson();
    }

    byte[] fence(byte[] json) {
        Fields fields = CommandReader.parse("fence", json);
        List<String> requests = CommandReader.fenced(fields);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        inbox.add(m -> cache.onCommand(new EngineCommand.Preempt(requests, fenced)));
        boolean reached = awaitReached(fenced, fields.integer("limitMillis"));
        return encode(Map.of("fenced", reached ? requests : List.of()));
    }

    byte[] leakCheck() {
        CompletableFuture<HeldCounts> answer = new CompletableFuture<>();
        inbox.add(m -> cache.onCommand(new EngineCommand.CountHeld(answer)));
        HeldCounts held = await(answer, ANSWER_LIMIT_MILLIS, "the messenger's answer");
        Map<String, Object> counts = new LinkedHashMap<>();
        counts.put("fetches", held.fetches());
        counts.put("prefills", held.prefills());
        counts.put("grantsWaiting", held.grantsWaiting());
        counts.put("writesInFlight", held.writesInFlight());
        counts.put("windowsOpen", held.windowsOpen());
        counts.put("quarantinedPages", held.quarantinedPages());
        return encode(Map.of("clean", held.clean(), "held", counts));
    }

    /** Drains, says goodbye, stops the threads, closes the paths; each step bounded in time. */
    void close() {
        String reason = request.engineId() + " is shutting down";
        CompletableFuture<Void> drained = new CompletableFuture<>();
        inbox.add(m -> m.drain(reason, drained));
        awaitOrWarn(drained, DRAIN_LIMIT_MILLIS, "the transfers under way");
        CompletableFuture<Void> left = new CompletableFuture<>();
        inbox.add(m -> m.leave(reason, left));
        awaitOrWarn(left, LEAVE_LIMIT_MILLIS, "the goodbyes of peers");
        boolean stopped = agent.stop(Duration.ofMillis(STOP_LIMIT_MILLIS));
        intake.close();
        network.close();
        metrics.close();
        closeOnExec.close();
        if (!stopped) {
            throw new IllegalStateException("the messenger's thread has not closed the transfer engine within "
                    + STOP_LIMIT_MILLIS + " ms: pages may still be read and written; end this process");
        }
    }

    private void awaitOrWarn(CompletableFuture<Void> end, long limitMillis, String what) {
        try {
            await(end, limitMillis, what);
        } catch (IllegalStateException late) {
            events.log(EngineLog.Level.WARNING, late.getMessage());
        }
    }

    private static boolean awaitReached(CompletableFuture<Void> fenced, long limitMillis) {
        try {
            fenced.get(limitMillis, TimeUnit.MILLISECONDS);
            return true;
        } catch (TimeoutException e) {
            return false; // the caller asks again
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        } catch (ExecutionException e) {
            throw new AssertionError("a fence has no way to fail", e);
        }
    }

    private static <T> T await(CompletableFuture<T> answer, long limitMillis, String what) {
        try {
            return answer.get(limitMillis, TimeUnit.MILLISECONDS);
        } catch (TimeoutException e) {
            throw new IllegalStateException(what + " did not end within " + limitMillis + " ms", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting for " + what, e);
        } catch (ExecutionException e) {
            throw new IllegalStateException(what + " failed: " + e.getCause().getMessage(), e);
        }
    }

    private static byte[] encode(Map<String, Object> json) {
        try {
            return JSON.std.asBytes(json);
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }
}
