package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextKind.Sending;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.BeforeEach;

/** A prefiller's and a decoder's messenger, joined by a test that carries their frames one by one. */
abstract class MessengerPair {
    static final ProtocolLimits LIMITS = new ProtocolLimits(1000, 1000, 500, 100, 300);
    /** The id of the first grant of a test, after that of {@link #connect}. */
    static final long FIRST_GRANT = 2;

    static final int PROMPT_TOKENS = 2 * Geometries.PAGE_TOKENS;

    /** Set by a test before it makes its sides. */
    ProtocolLimits limits = LIMITS;

    long nowNs;
    Side prefiller = new Side("prefiller", 1, 0);
    Side decoder = new Side("decoder", 2, 0);
    /** Set by a test: writes are on their way until it lets them land. */
    boolean landsLate;

    long lastStep;
    /** With which transfers the two kinds of context rows go; set by a test before it makes its sides. */
    List<Sending> sending = List.of(Sending.ALWAYS, Sending.ALWAYS);

    /** One messenger on recording ports. */
    final class Side implements EngineEvents, EngineIntake {
        final Wire wire = new Wire();
        final CountingTally tally = new CountingTally();
        final RecordingTransferEngine transfer = new RecordingTransferEngine();
        final List<String> reported = new ArrayList<>();
        final List<String> logged = new ArrayList<>();
        final List<String> connected = new ArrayList<>();
        final List<String> enqueued = new ArrayList<>();
        final List<TransferKey> asked = new ArrayList<>();
        final List<TransferKey> asksEnded = new ArrayList<>();
        boolean withoutIntake;
        final List<EngineCommand.Prompt> prompts = new ArrayList<>();
        final KvCache cache;
        final Messenger messenger;
        final Region region;
        String lastFailure = "";
        /** Why the prefiller's engine was last told that nothing more will be sent. */
        String lastStop = "";
        /** Set by a test: the engine's port fails when it is to report this request's quarantine. */
        String failsAtReportOf = "";

        final CountedSteps progress;

        Side(String name, long incarnation, int contextRowCount) {
            this(name, incarnation, contextRowCount, ChecksumMode.OFF);
        }

        Side(String name, long incarnation, int contextRowCount, ChecksumMode checksumMode) {
            this(name, incarnation, contextRowCount, checksumMode, Geometries.of("m"));
        }

        Side(String name, long incarnation, int contextRowCount, ChecksumMode checksumMode, KvGeometry geometry) {
            progress = new CountedSteps(geometry.ranks().getFirst().layers().size());
            region = transfer.register(Memory.host(MemorySegment.ofArray(new byte[1024])));
            PeerWarnings warnings = new PeerWarnings(this, () -> nowNs);
            SplittableRandom random = new SplittableRandom(incarnation);
            Sessions sessions = new Sessions(
                    new MessengerIdentity(name, incarnation, new byte[0]), wire, limits, tally, random, warnings);
            cache = new KvCache(
                    new Decoder.Cache(
                            geometry,
                            geometry.ranks().stream()
                                    .map(rank -> new RankMemory(List.of(region)))
                                    .toList(),
                            contextRows(transfer, contextRowCount, sending),
                            checksumMode),
                    sessions,
                    limits,
                    new KvPorts(transfer, this, this, progress, tally, new History(), () -> nowNs, random));
            messenger = new Messenger(sessions, cache, new Messenger.Ports(transfer, tally, warnings, () -> nowNs));
        }

        @Override
        public void released(String request) {
            reported.add("released " + request);
        }

        @Override
        public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {
            String rows = contextKinds.isEmpty() ? "" : " with " + String.join(", ", contextKinds);
            reported.add("granted " + request + " [" + firstToken + ", " + promptTokens + ")" + rows);
        }

        @Override
        public void stopped(String request, String reason) {
            lastStop = reason;
            reported.add("stopped " + request);
        }

        @Override
        public void arrived(String request, int pageCount) {
            reported.add("arrived " + request);
        }

        @Override
        public void prefilled(TransferKey transfer) {
            reported.add(("prefilled " + transfer.id() + " " + transfer.digest()).strip());
        }

        @Override
        public void offered(String request, int heldTokens, OfferOutcome outcome) {
            reported.add("offered " + request + " " + heldTokens + " " + outcome);
        }

        @Override
        public void connected(String host, int port, long incarnation) {
            connected.add(host + ":" + port + " is " + incarnation + " before " + reported.size() + " events");
        }

        @Override
        public void disconnected(String host, int port) {
            connected.add(host + ":" + port + " is gone");
        }

        @Override
        public void quarantined(String request, String reason) {
            if (request.equals(failsAtReportOf)) {
                throw new IllegalStateException("the engine's port fails");
            }
            reported.add("quarantined " + request);
        }

        @Override
        public void failed(String request, String reason) {
            reported.add("failed " + request);
            lastFailure = reason;
        }

        @Override
        public void timeline(PrefillTimeline timeline) {}

        @Override
        public void timeline(FetchTimeline timeline) {}

        @Override
        public void log(Level level, String message) {
            logged.add(level + " " + message);
        }

        @Override
        public boolean takesPrompts() {
            return !withoutIntake;
        }

        @Override
        public boolean takesQuestions() {
            return !withoutIntake;
        }

        @Override
        public void enqueue(TransferKey transfer, EngineCommand.Prompt prompt) {
            enqueued.add(transfer.id());
            prompts.add(prompt);
        }

        @Override
        public void ask(TransferKey transfer, EngineCommand.Prompt prompt) {
            asked.add(transfer);
            prompts.add(prompt);
        }

        @Override
        public void endAsk(TransferKey transfer) {
            assertThat(asked).contains(transfer);
            asksEnded.add(transfer);
        }
    }

    @BeforeEach
    void connect() {
        fetch("warm-up", 1, 0);
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("warm-up"));
        carry();
        assertThat(decoder.reported).containsExactly("failed warm-up");
        decoder.reported.clear();
    }

    /** The sides that a test has made, of which the decoder has asked for a transfer "warm-up", meet. */
    void meet() {
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("warm-up"));
        carry();
        decoder.reported.clear();
    }

    void carry() {
        prefiller.transfer.landsIn = landsLate ? null : decoder.transfer;
        do {
            prefiller.messenger.doWork();
            decoder.messenger.doWork();
            prefiller.wire.take().forEach(f -> decoder.messenger.onFrame(Wire.DIALLED_LINK, f));
            decoder.wire.take().forEach(f -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, f));
        } while (!prefiller.wire.sent.isEmpty() || !decoder.wire.sent.isEmpty());
    }

    /** The prefiller says so of the request {@code r}, whatever it has been told itself. */
    void cannotDeliver(long grantId, CannotDeliver.Reason reason) {
        cannotDeliver(grantId, reason, "");
    }

    void cannotDeliver(long grantId, CannotDeliver.Reason reason, String sentence) {
        CannotDeliver answer = CannotDeliver.newBuilder()
                .setTransferId("t-r")
                .setGrantId(grantId)
                .setReason(reason)
                .setSentence(sentence)
                .build();
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder().setCannotDeliver(answer).build());
    }

    void fetch(String request, int firstPage, long limitNs) {
        fetch(request, firstPage, limitNs, new int[0]);
    }

    void fetch(String request, int firstPage, long limitNs, int[] tokens) {
        decoder.cache.onCommand(fetchOf(request, firstPage, limitNs, "", new EngineCommand.Prompt(tokens, "", 0)));
    }

    /** @param pages of the last tokens; those before are there */
    void fetch(String request, int contextSlot, List<String> contextKinds, int... pages) {
        decoder.cache.onCommand(new EngineCommand.Fetch(
                request,
                "t-" + request,
                List.of(new EngineCommand.PrefillerAddress("host", 7, "")),
                PROMPT_TOKENS,
                PROMPT_TOKENS - pages.length * Geometries.PAGE_TOKENS,
                List.of(pages),
                contextSlot,
                contextKinds,
                0,
                "",
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
    }

    void fetch(String request, int firstPage, String promptDigest) {
        decoder.cache.onCommand(fetchOf(request, firstPage, 0, promptDigest, EngineCommand.Prompt.NONE));
    }

    static EngineCommand.Fetch fetchOf(
            String request, int firstPage, long limitNs, String promptDigest, EngineCommand.Prompt prompt) {
        return new EngineCommand.Fetch(
                request,
                "t-" + request,
                List.of(new EngineCommand.PrefillerAddress("host", 7, "")),
                PROMPT_TOKENS,
                0,
                List.of(new int[] {firstPage, firstPage + 1}),
                ContextSlots.NO_SLOT,
                List.of(),
                limitNs,
                promptDigest,
                prompt,
                EngineCommand.PullWaits.NONE);
    }

    /** One forward pass over the whole prompt. */
    void compute(String request, int cachedTokens) {
        beginStep(new EngineCommand.Chunk(
                request, "t-" + request, PROMPT_TOKENS, cachedTokens, cachedTokens, PROMPT_TOKENS, 0, new int[] {5, 6
                }));
        endStep();
    }

    /** A forward pass begins where the counter stands. */
    void beginStep(EngineCommand.Chunk... chunks) {
        prefiller.cache.onCommand(new EngineCommand.Step(++lastStep, prefiller.progress.count, List.of(chunks)));
    }

    /** It is over, whatever layers were counted. */
    void endStep() {
        prefiller.cache.onCommand(new EngineCommand.StepEnded(lastStep, prefiller.progress.count));
    }

    /** A forward pass over the whole prompt of which one layer is computed. */
    void beginPass(String request) {
        EngineCommand.Chunk chunk = new EngineCommand.Chunk(
                request, "t-" + request, PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {5, 6});
        beginStep(chunk);
        prefiller.progress.count++;
        carry();
    }

    void completeOneWrite() {
        long cookie = prefiller.transfer.submitted.removeFirst();
        prefiller.transfer.completions.add(handler -> handler.onWriteCompleted(cookie));
        prefiller.messenger.doWork();
    }

    private static List<ContextRow> contextRows(
            RecordingTransferEngine transfer, int slotCount, List<Sending> sending) {
        if (slotCount == 0) {
            return List.of();
        }
        return List.of(
                contextRow(transfer, new ContextKind("token", 8, sending.getFirst()), slotCount),
                contextRow(transfer, new ContextKind("room", 64, sending.getLast()), slotCount));
    }

    private static ContextRow contextRow(RecordingTransferEngine transfer, ContextKind kind, int slotCount) {
        return new ContextRow(
                new ContextSlots(kind, 64, slotCount),
                transfer.register(Memory.host(MemorySegment.ofArray(new byte[64 * slotCount]))));
    }

    void announce(String request) {
        prefiller.cache.onCommand(new EngineCommand.Announce(request, "t-" + request));
    }

    /** The engine says that tokens up to {@code endToken} are in place, outside of any forward pass. */
    void reportComputed(String request, int promptTokens, int endToken, int firstPage, int... pages) {
        prefiller.cache.onCommand(new EngineCommand.Computed(
                new EngineCommand.Chunk(request, "t-" + request, promptTokens, 0, 0, endToken, firstPage, pages)));
    }

    void end(String request, EngineCommand.PrefillOutcome outcome, int contextSlot) {
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded(request, outcome, contextSlot));
    }
}
