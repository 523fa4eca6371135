package io.kvmessenger.connector;

import io.kvmessenger.connector.KvRequest.ContextMemory;
import io.kvmessenger.hooks.LayerCounter;
import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.KvCache;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * A KV cache as its engine uses it: commands, the layer counter, and the engine's own interface, where prompts are
 * enqueued.
 *
 * <p>It contains no protocol, only wiring; its threads are those of {@link EngineSubject}.
 */
final class KvEngine implements EngineSubject {
    /** Keeps the counter alone in its cache lines: the engine writes it while the watcher reads. */
    private static final long COUNTER_ALIGNMENT_BYTES = 128;

    private final SubjectPorts ports;
    private final HttpIntake api;
    private final EngineIntake intake;
    private final MemorySegment counterWord;
    private final KvCache cache;

    KvEngine(KvRequest request, SubjectPorts ports) {
        this.ports = ports;
        this.counterWord = Arena.global().allocate(COUNTER_ALIGNMENT_BYTES, COUNTER_ALIGNMENT_BYTES);
        this.api = new HttpIntake(
                request.engineApiUrl(),
                request.engineApiKey(),
                Duration.ofNanos(ports.limits().connectLimitNs()),
                Duration.ofNanos(ports.limits().fetchLimitNs()),
                this::enqueueFailed);
        this.intake = request.asksByEvents() ? new KvQuestions(ports.events()) : api;
        try {
            this.cache = cache(request);
        } catch (RuntimeException | Error failure) {
            api.close();
            throw failure;
        }
    }

    private KvCache cache(KvRequest request) {
        TransferEngine transfer = ports.transfer();
        return new KvCache(
                new Decoder.Cache(
                        request.geometry(),
                        register(request.memories(), transfer),
                        registerContext(request.context(), transfer),
                        request.pageChecksum()),
                ports.sessions(),
                ports.limits(),
                new KvPorts(
                        transfer,
                        new KvEvents(ports.events(), ports.tally(), request.timelines(), ports.clock()),
                        intake,
                        new HookedLayerProgress(
                                new LayerCounter(counterWord.asSlice(0, LayerCounter.LENGTH_BYTES)),
                                request.layerCounterLag(),
                                request.geometry().ranks().getFirst().layers().size()),
                        ports.tally(),
                        new History(),
                        ports.clock(),
                        ports.random()));
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

    /** Any thread. */
    private void enqueueFailed(TransferKey prompt, String reason) {
        ports.onThread().execute(() -> cache.onEnqueueFailed(prompt, reason));
    }

    @Override
    public ServedSubject served() {
        return cache;
    }

    @Override
    public List<Runnable> commands(List<Fields> commands) {
        return CommandReader.read(commands).stream()
                .map(command -> (Runnable) () -> cache.onCommand(command))
                .toList();
    }

    @Override
    public Runnable fence(List<String> requests, CompletableFuture<Void> reached) {
        CommandReader.requireFenceable(requests);
        return () -> cache.onCommand(new EngineCommand.Preempt(requests, reached));
    }

    @Override
    public Map<String, Integer> held() {
        HeldCounts held = cache.held();
        Map<String, Integer> counts = new LinkedHashMap<>();
        counts.put("fetches", held.fetches());
        counts.put("prefills", held.prefills());
        counts.put("grantsWaiting", held.grantsWaiting());
        counts.put("writesInFlight", held.writesInFlight());
        counts.put("windowsOpen", held.windowsOpen());
        counts.put("quarantinedPages", held.quarantinedPages());
        return counts;
    }

    @Override
    public MessengerState describe(int rowsMax) {
        return cache.describe(rowsMax);
    }

    @Override
    public long layerCounterAddress() {
        return counterWord.address();
    }

    @Override
    public void close() {
        api.close();
    }
}
