package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Admission;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;

/** Plays events of one transfer between two messengers, as engines cause them, until both sides are at rest. */
abstract class TransferStory extends MessengerPair {
    /** Limits that differ from each other, so that an end shows which of them was over. */
    private static final ProtocolLimits APART = new ProtocolLimits(1000, 4000, 500, 20, 300, 400, 0);

    /** How long an engine that waits for its grant before it computes does so: SGLang's own limit. */
    private static final long ENGINE_WAIT_NS = 9000;
    /** Granularity of the clock, and of what a duty cycle finds due. */
    private static final long LATE_NS = 2 * APART.heartbeatNs();

    private static final int CONTEXT_SLOTS = 4;
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));

    /** How engines use a messenger. */
    enum Engines {
        /** It announces, computes whatever its decoder says, and sends no rows. */
        VLLM(true, true, false, false),
        /** It announces, waits for a grant before it computes, and drops what no decoder wants. Rows follow. */
        SGLANG(true, true, true, true),
        /** The same, except that it computes before it is granted and that its prompts have no digests. */
        OPTIMISTIC_SGLANG(true, false, true, false),
        /** It announces nothing, and its prompts have no digests. */
        SILENT(false, false, false, false);

        private final boolean announces;
        private final boolean digests;
        /** It drops what no decoder wants, and its rows complete a transfer. */
        private final boolean heeds;

        private final boolean awaitsGrants;

        Engines(boolean announces, boolean digests, boolean heeds, boolean awaitsGrants) {
            this.announces = announces;
            this.digests = digests;
            this.heeds = heeds;
            this.awaitsGrants = awaitsGrants;
        }
    }

    /** How a prompt ended. */
    enum PrefillEnd {
        SENT,
        /** Either side said that it is not to be sent, or the session ended. */
        GIVEN_UP,
        /** Nothing was said, and its limit was over. */
        EXPIRED,
        NONE
    }

    /** How a fetch ended. */
    enum FetchEnd {
        ARRIVED,
        FAILED,
        NONE
    }

    /** How a story ended on each side. */
    record Ends(PrefillEnd prefill, FetchEnd fetch) {}

    private Engines engines;
    private boolean writesLate;
    private String prefillerDigest;
    private boolean announced;
    private boolean begun;
    /** The prefiller's engine has ended the request. */
    private boolean dropped;

    private boolean passRuns;
    /** What the engine will do when it is granted. */
    private final Deque<TransferEvent> postponed = new ArrayDeque<>();
    /** The engine has dropped the prompt because nothing was said about it for too long. */
    private boolean tired;

    private boolean fetched;
    private long announcedNs;
    private int dialled;
    private int revoked;
    private final List<Long> causesNs = new ArrayList<>();
    /** Each returns whether it did anything. */
    private final List<BooleanSupplier> consequences =
            List.of(this::dial, this::landAll, this::closeAdmissions, this::compute, this::heed);

    private CompletableFuture<Void> fenced;
    private long releasedNs;
    private long fetchOverNs;

    /** Plays the events and lets time pass until nothing happens any more. */
    Ends play(Engines engines, boolean writesLate, List<TransferEvent> events) {
        begin(engines, writesLate);
        for (TransferEvent event : events) {
            happen(event);
            settle();
            causesNs.add(nowNs);
        }
        this.writesLate = false;
        settle();
        causesNs.add(nowNs);
        long restByNs = nowNs + ENGINE_WAIT_NS + APART.fetchLimitNs();
        while (!atRest() && nowNs < restByNs) {
            pass(APART.heartbeatNs() / 2);
        }
        check(events);
        return new Ends(prefillEnd(), fetchEnd());
    }

    private void begin(Engines engines, boolean writesLate) {
        this.engines = engines;
        this.writesLate = writesLate;
        limits = APART;
        prefiller = new Side("prefiller", 1, engines.heeds ? CONTEXT_SLOTS : 0);
        decoder = new Side("decoder", 2, engines.heeds ? CONTEXT_SLOTS : 0);
        nowNs = 0;
        lastStep = 0;
        if (engines.heeds) {
            fetch("warm-up", 0, List.of(), 1);
        } else {
            fetch("warm-up", 1, 0);
        }
        meet();
        prefiller.reported.clear();
        prefillerDigest = engines.digests ? "aa" : "";
        announced = begun = dropped = passRuns = tired = fetched = false;
        postponed.clear();
        dialled = decoder.wire.dialledCount;
        revoked = decoder.transfer.revoked.size();
        causesNs.clear();
        fenced = CompletableFuture.completedFuture(null);
        releasedNs = fetchOverNs = -1;
    }

    private void happen(TransferEvent event) {
        switch (event) {
            case ANNOUNCED -> announce();
            case BEGUN, ENDED -> {
                postponed.add(event);
                compute();
            }
            case ABORTED -> endPrefill(PrefillOutcome.ABORTED);
            case PREEMPTED -> preempt();
            case EXPECTED -> decoder.cache.onCommand(new EngineCommand.Expect(decodersName(), PREFILLER));
            case GRANTED -> fetch();
            case DECLINED -> decoder.cache.onCommand(new EngineCommand.Decline(decodersName(), PREFILLER));
            case CANCELLED -> decoder.cache.onCommand(new EngineCommand.Abandon("r"));
            case REJECTED -> decoder.cache.onCommand(new EngineCommand.Reject("t-r", PREFILLER));
            case PREFILL_EXPIRED -> pass(APART.grantWaitNs() + APART.heartbeatNs());
            case UNHEARD -> pass(APART.unheardLimitNs() + APART.heartbeatNs());
            case FETCH_EXPIRED -> pass(APART.fetchLimitNs() + APART.heartbeatNs());
            case LINK_LOST -> {
                prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
                decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
            }
            case WEIGHTS_CHANGED -> prefillerDigest = engines.digests && !announced ? "bb" : prefillerDigest;
        }
    }

    private TransferKey decodersName() {
        return new TransferKey("t-r", engines.digests ? "aa" : "");
    }

    private int contextSlot() {
        return engines.heeds ? 0 : ContextSlots.NO_SLOT;
    }

    // ---- the prefiller's engine

    private void announce() {
        announced = true;
        announcedNs = nowNs;
        if (engines.announces) {
            prefiller.cache.onCommand(new EngineCommand.Announce("r", "t-r", prefillerDigest));
        }
    }

    /** Does what was postponed if it need not wait for a grant. Returns whether anything was done. */
    private boolean compute() {
        boolean may =
                !engines.awaitsGrants || prefiller.reported.stream().anyMatch(word -> word.startsWith("granted r "));
        if (postponed.isEmpty() || !may) {
            return false;
        }
        if (postponed.poll() == TransferEvent.BEGUN) {
            beginPass();
        } else {
            endPrefill(PrefillOutcome.FINISHED);
        }
        return true;
    }

    private void beginPass() {
        if (!dropped) {
            begun = passRuns = true;
            beginStep(new Chunk(
                    "r",
                    "t-r",
                    PROMPT_TOKENS,
                    0,
                    0,
                    PROMPT_TOKENS,
                    List.of(new ChunkPages(0, new int[] {5, 6})),
                    prefillerDigest));
            prefiller.progress.count++;
        }
    }

    private void endPass() {
        if (passRuns) {
            passRuns = false;
            endStep();
        }
    }

    private void endPrefill(PrefillOutcome outcome) {
        if (!dropped) {
            dropped = true;
            if (outcome == PrefillOutcome.FINISHED) {
                endPass();
            }
            end("r", outcome, outcome == PrefillOutcome.FINISHED ? contextSlot() : ContextSlots.NO_SLOT);
            endPass();
        }
    }

    private void preempt() {
        if (!dropped) {
            fenced = new CompletableFuture<>();
            prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
            endPass();
        }
    }

    // ---- the decoder's engine

    private void fetch() {
        fetched = true;
        decoder.cache.onCommand(new EngineCommand.Fetch(
                "r",
                "t-r",
                PREFILLER,
                PROMPT_TOKENS,
                0,
                List.of(new int[] {1, 2}),
                contextSlot(),
                List.of(),
                0,
                decodersName().digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
    }

    // ---- what follows by itself

    private void pass(long ns) {
        for (long passed = 0; passed < ns; passed += APART.heartbeatNs() / 2) {
            nowNs += APART.heartbeatNs() / 2;
            settle();
        }
    }

    /** Frames, writes, links and the engines' answers to what they hear, until nothing follows. */
    private void settle() {
        boolean more = true;
        while (more) {
            carry();
            more = false;
            for (BooleanSupplier follows : consequences) {
                more |= follows.getAsBoolean();
            }
        }
        releasedNs = releasedNs < 0 && prefiller.reported.contains("released r") ? nowNs : releasedNs;
        fetchOverNs = fetchOverNs < 0 && fetchCount() > 0 ? nowNs : fetchOverNs;
    }

    private boolean dial() {
        if (decoder.wire.dialledCount == dialled) {
            return false;
        }
        dialled = decoder.wire.dialledCount;
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        return true;
    }

    private boolean landAll() {
        boolean any = decoder.transfer.reportFilled() > 0;
        while (!writesLate && !prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
            any = true;
        }
        return any;
    }

    private boolean closeAdmissions() {
        if (decoder.transfer.revoked.size() == revoked) {
            return false;
        }
        for (; revoked < decoder.transfer.revoked.size(); revoked++) {
            Admission admission = decoder.transfer.revoked.get(revoked);
            decoder.transfer.completions.add(handler -> handler.onAdmissionClosed(admission, "revoked"));
        }
        return true;
    }

    private boolean heed() {
        boolean stopped = prefiller.reported.contains("stopped r");
        boolean waitsLong = announced && !begun && nowNs - announcedNs >= ENGINE_WAIT_NS;
        if (dropped || !engines.heeds || !(stopped || waitsLong)) {
            return false;
        }
        tired = !stopped;
        endPrefill(PrefillOutcome.ABORTED);
        return true;
    }

    // ---- its end

    private long fetchCount() {
        return decoder.reported.stream()
                .filter(word -> word.equals("arrived r") || word.equals("failed r"))
                .count();
    }

    private boolean atRest() {
        boolean released = !dropped || prefiller.reported.contains("released r");
        return released && (!fetched || fetchCount() > 0) && (dropped || !announced);
    }

    private void check(List<TransferEvent> events) {
        assertThat(held()).as("held after %s, %s", engines, events).isEmpty();
        assertThat(fenced)
                .as("the fence of a preemption, %s, %s", engines, events)
                .isCompleted();
        assertThat(prefiller.reported.stream().filter("released r"::equals).count())
                .as("releases, %s, %s", engines, events)
                .isEqualTo(dropped ? 1 : 0);
        assertThat(fetchCount())
                .as("ends of the fetch, %s, %s", engines, events)
                .isEqualTo(fetched ? 1 : 0);
        explain("the prefill", releasedNs, events);
        explain("the fetch", fetchOverNs, events);
    }

    private Map<String, Integer> held() {
        Map<String, Integer> held = new TreeMap<>();
        for (Side side : List.of(prefiller, decoder)) {
            HeldCounts counts = side.cache.held();
            held.merge("prefills", counts.prefills(), Integer::sum);
            held.merge("fetches", counts.fetches(), Integer::sum);
            held.merge("grants", counts.grantsWaiting(), Integer::sum);
            held.merge("writes", counts.writesInFlight(), Integer::sum);
            held.merge("windows", counts.windowsOpen(), Integer::sum);
            held.merge("pages", counts.quarantinedPages(), Integer::sum);
        }
        held.values().removeIf(count -> count == 0);
        return held;
    }

    /** Every end follows from an event: at once, or when one of the limits is over. */
    private void explain(String what, long endNs, List<TransferEvent> events) {
        if (endNs < 0) {
            return;
        }
        List<Long> limitsNs = List.of(
                0L,
                APART.fenceLimitNs(),
                APART.rejectedWaitNs(),
                APART.silenceLimitNs(),
                APART.unheardLimitNs(),
                2 * APART.contradictionWaitNs(),
                APART.grantWaitNs(),
                APART.fetchLimitNs(),
                APART.fetchLimitNs() + APART.silenceLimitNs(),
                ENGINE_WAIT_NS);
        assertThat(causesNs)
                .as("%s ended at %d, %s, %s", what, endNs, engines, events)
                .anyMatch(causeNs ->
                        limitsNs.stream().anyMatch(limitNs -> Math.abs(endNs - causeNs - limitNs) <= LATE_NS));
    }

    private PrefillEnd prefillEnd() {
        if (prefiller.tally.sum(MessengerMetric.PREFILLS_SENT) > 0) {
            return PrefillEnd.SENT;
        }
        if (tired || prefiller.tally.sum(PrefillFailure.EXPIRED) > 0) {
            return PrefillEnd.EXPIRED;
        }
        return announced ? PrefillEnd.GIVEN_UP : PrefillEnd.NONE;
    }

    private FetchEnd fetchEnd() {
        if (!fetched) {
            return FetchEnd.NONE;
        }
        return decoder.reported.contains("arrived r") ? FetchEnd.ARRIVED : FetchEnd.FAILED;
    }
}
