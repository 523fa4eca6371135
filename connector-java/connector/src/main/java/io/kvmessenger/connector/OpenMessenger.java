package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.Json;
import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.connector.metrics.MessengerMetrics;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * One engine's messenger with all its dependencies, whatever it moves: the composition root.
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

    private static final int NOT_LISTENING = -1;
    /** Rows of each list on the state page. */
    private static final int STATE_ROWS_MAX = 100;

    private static final NanoClock CLOCK = System::nanoTime;

    private final RuntimeOptions options;
    private final long incarnation;
    private final CloseOnExec closeOnExec;
    private final EventQueue events;
    private final MessengerMetrics metrics;
    private final MessengerAgent agent;
    private final Inbox inbox;
    private final TransferEngine transfer;
    private final NettyControlNetwork network;
    private final EngineSubject subject;
    private final Messenger messenger;
    private final int controlPort;

    private OpenMessenger(OpenRequest request, Deque<AutoCloseable> started) {
        FirstLogLine.format();
        SecureRandom random = new SecureRandom();
        this.options = request.runtime();
        this.incarnation = random.nextLong();
        this.closeOnExec = new CloseOnExec(new FfmLibC());
        started.push(closeOnExec);
        this.metrics = metrics(options, closeOnExec);
        started.push(metrics);
        this.events = new EventQueue(metrics, CLOCK);
        metrics.notes().forEach(note -> events.log(EngineLog.Level.INFO, note));
        this.transfer =
                TransferWiring.open(options.transfer(), request.subject().contextAddresses());
        started.push(transfer);
        transfer.unavailable().forEach(why -> events.log(EngineLog.Level.WARNING, "a transport is left out: " + why));
        this.inbox = new Inbox(CLOCK, transfer::wake);
        metrics.follow(transfer::counters);
        this.network = network(options, inbox, closeOnExec);
        started.push(network);
        PeerWarnings warnings = new PeerWarnings(events, CLOCK);
        Sessions sessions = sessions(warnings, random);
        this.subject = request.subject().open(ports(sessions, random));
        started.push(subject);
        this.messenger =
                new Messenger(sessions, subject.served(), new Messenger.Ports(transfer, metrics, warnings, CLOCK));
        transfer.notes().forEach(note -> events.log(EngineLog.Level.WARNING, note));
        this.controlPort = request.subject().listens()
                ? network.listen(options.transfer().get(TransferOptions.LISTEN_HOST), options.listenPort())
                : NOT_LISTENING;
        this.agent = new MessengerAgent(transfer, messenger, inbox, CLOCK, new FaultLog(events, CLOCK)::add);
        agent.start();
        metrics.watch(() -> agent.healthProblem(options.limits().heartbeatNs()));
        metrics.declareNotReady(subject.notReady());
        metrics.show(asked -> inbox.add(m -> asked.complete(subject.describe(STATE_ROWS_MAX))));
    }

    private Sessions sessions(PeerWarnings warnings, SecureRandom random) {
        return new Sessions(
                new MessengerIdentity(
                        options.engineId(), incarnation, options.sharedSecret().getBytes(StandardCharsets.UTF_8)),
                network,
                options.limits(),
                metrics,
                random,
                warnings);
    }

    private SubjectPorts ports(Sessions sessions, SecureRandom random) {
        return new SubjectPorts(
                sessions,
                transfer,
                events,
                options.limits(),
                metrics,
                CLOCK,
                random,
                task -> inbox.add(m -> task.run()));
    }

    private static NettyControlNetwork network(RuntimeOptions options, Inbox inbox, CloseOnExec closeOnExec) {
        return new NettyControlNetwork(
                inbox,
                TimeUnit.NANOSECONDS.toMillis(options.limits().connectLimitNs()),
                NettyControlNetwork.LINKS_MAX,
                closeOnExec,
                options.tls().isGiven() ? options.tls().read(Instant.now()) : null);
    }

    private static MessengerMetrics metrics(RuntimeOptions options, CloseOnExec closeOnExec) {
        return MessengerMetrics.open(
                options.metricsHost(),
                options.metricsPort(),
                options.metricsPeers(),
                options.pageKey(),
                closeOnExec::opened);
    }

    /** Starts everything; on failure, whatever it is, closes what had started. */
    static OpenMessenger open(OpenRequest request) {
        Deque<AutoCloseable> started = new ArrayDeque<>();
        try {
            return new OpenMessenger(request, started);
        } catch (RuntimeException | Error failure) {
            started.forEach(part -> close(part, failure));
            throw failure;
        }
    }

    private static void close(AutoCloseable part, Throwable failure) {
        try {
            part.close();
        } catch (Exception | Error second) {
            if (second != failure) { // the JVM may throw one OutOfMemoryError again and again
                failure.addSuppressed(second);
            }
        }
    }

    OpenResult result(long handle) {
        return new OpenResult(
                handle,
                options.engineId(),
                Long.toHexString(incarnation),
                options.transfer().reachableHost(),
                controlPort > 0 && options.advertisePort() > 0 ? options.advertisePort() : controlPort,
                options.metricsHost(),
                metrics.port(),
                subject.layerCounterAddress());
    }

    void submit(byte[] json) {
        List<Fields> commands = RequestJson.parse("submit", json).objects("commands");
        for (Runnable command : subject.commands(commands)) {
            inbox.add(m -> command.run());
        }
    }

    /** Reports events first: the end of every request precedes the report that the messenger has ended. */
    byte[] poll(int capacityBytes) {
        Optional<String> death = agent.death(); // before the events are read: those that precede it are all there
        byte[] reported = events.drain(capacityBytes);
        if (reported.length == 0 && death.isPresent()) {
            throw new RefusedException("the messenger of " + options.engineId() + " is dead: " + death.get());
        }
        return reported;
    }

    /** Blocks until a poll would return something, or the limit has passed. */
    void await(byte[] json) {
        long limitMicros = RequestJson.parse("await", json).integer("limitMicros");
        if (agent.death().isEmpty()) {
            events.await(TimeUnit.MICROSECONDS.toNanos(limitMicros));
        }
    }

    byte[] stats() {
        return metrics.snapshotJson();
    }

    byte[] fence(byte[] json) {
        Fields fields = RequestJson.parse("fence", json);
        List<String> requests = fields.texts("requests");
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        Runnable command = subject.fence(requests, fenced);
        inbox.add(m -> command.run());
        boolean reached = awaitReached(fenced, fields.integer("limitMillis"));
        return Json.bytes(Map.of("fenced", reached ? requests : List.of()));
    }

    byte[] leakCheck() {
        CompletableFuture<Map<String, Integer>> answer = new CompletableFuture<>();
        inbox.add(m -> answer.complete(subject.held()));
        Map<String, Integer> held = await(answer, ANSWER_LIMIT_MILLIS, "the messenger's answer");
        boolean clean = held.values().stream().allMatch(count -> count == 0);
        return Json.bytes(Map.of("clean", clean, "held", held));
    }

    /**
     * Drains, says goodbye, stops the threads, closes the paths; each step bounded in time.
     *
     * @param why for peers: a predicate of the engine
     */
    void close(String why) {
        String reason = options.engineId() + " " + why;
        CompletableFuture<Void> drained = new CompletableFuture<>();
        inbox.add(m -> m.drain(reason, drained));
        awaitOrWarn(drained, DRAIN_LIMIT_MILLIS, "the transfers under way");
        CompletableFuture<Void> left = new CompletableFuture<>();
        inbox.add(m -> m.leave(reason, left));
        awaitOrWarn(left, LEAVE_LIMIT_MILLIS, "the goodbyes of peers");
        boolean stopped = agent.stop(Duration.ofMillis(STOP_LIMIT_MILLIS));
        subject.close();
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
}
