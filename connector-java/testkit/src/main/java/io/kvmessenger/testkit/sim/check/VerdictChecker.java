package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * A verdict waits for its proof: a fetch whose every granted byte has been counted when it ends has arrived, whatever
 * became of its control links, unless something else made it fail before. The engine is told to give a fetch up early
 * only if its link ended some time ago.
 *
 * <p>It reads from {@link CountChecker} what has been counted, and has to be asked before that.
 */
final class VerdictChecker implements WorldListener {
    private final CountChecker counts;
    private final LongSupplier clock;
    private final ProtocolLimits limits;
    /** Whether pages are compared: then checksums that a link did not bring make a fetch fail as well. */
    private final boolean comparing;

    private final String shutDownReason;

    private final Map<String, FetchFacts> fetches = new HashMap<>();
    private final Map<String, Long> askedNs = new HashMap<>();
    /** Fetches that fail for a reason of their own, or of which that has been reported. */
    private final Set<String> excused = new HashSet<>();
    /** By process and its peer's node: when a link between them last ended. */
    private final Map<String, Long> closedNs = new HashMap<>();

    VerdictChecker(
            CountChecker counts, LongSupplier clock, ProtocolLimits limits, boolean comparing, String shutDownReason) {
        this.counts = counts;
        this.clock = clock;
        this.limits = limits;
        this.comparing = comparing;
        this.shutDownReason = shutDownReason;
    }

    @Override
    public void linkClosed(String process, String peer, String reason) {
        closedNs.put(process + " " + peer.replaceFirst("#.*", ""), clock.getAsLong());
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + " " + fetch.request(), fetch);
        askedNs.put(fetch.process() + " " + fetch.request(), clock.getAsLong());
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        excused.add(process + " " + request);
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasCannotDeliver()) {
            CannotDeliver answer = frame.getCannotDeliver();
            String name = PromptName.of(answer.getTransferId(), answer.getPromptDigest());
            fetches.forEach((key, fetch) -> {
                if (fetch.process().equals(to) && fetch.transferId().equals(name)) {
                    excused.add(key);
                }
            });
        }
    }

    @Override
    public void fetchQuarantined(String process, String request) {
        String key = process + " " + request;
        boolean endedLongAgo = fetches.get(key).prefillers().stream()
                .map(node -> closedNs.get(process + " " + node))
                .anyMatch(atNs -> atNs != null && clock.getAsLong() - atNs >= limits.silenceLimitNs() / 5);
        if (!isExcused(key, "") && !endedLongAgo) {
            throw new Violation(
                    "Verdict", request + " is given up with its control link, and what was on its way may still land");
        }
        excused.add(key);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        String key = process + " " + request;
        if (!isExcused(key, reason) && counts.hasAll(process, request)) {
            throw new Violation(
                    "Verdict", request + " has failed, and all of it had been counted before; reason: " + reason);
        }
    }

    private boolean isExcused(String key, String reason) {
        FetchFacts fetch = fetches.get(key);
        long limitNs = fetch.limitNs() > 0 ? fetch.limitNs() : limits.fetchLimitNs();
        boolean late = clock.getAsLong() - askedNs.get(key) >= limitNs;
        return late || comparing || excused.contains(key) || reason.equals(shutDownReason);
    }
}
