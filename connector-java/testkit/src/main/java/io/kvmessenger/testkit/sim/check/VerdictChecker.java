package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.testkit.sim.PlantedFault;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.ToLongFunction;

/**
 * A verdict waits for its proof: a fetch whose every granted byte has been counted when it ends has arrived, whatever
 * became of its control links, unless something else made it fail before. The engine is told to give a fetch up early
 * only if its link ended some time ago, if one of its sources can never be filled, or if the decoder itself shuts down.
 *
 * <p>It reads from {@link CountChecker} what has been counted, and has to be asked before that. Of a fetch from several
 * sources it does not know which of them has sent everything: the end of any one's admission excuses it.
 */
final class VerdictChecker implements WorldListener {
    /** How a link is named that found no process at its address. */
    private static final String NO_PEER = "no peer";

    private static final int NO_ADMISSION = -1;

    private final CountChecker counts;
    /** By process: its own time, in which its limits are. */
    private final ToLongFunction<String> clock;

    private final ProtocolLimits limits;
    /** Whether pages are compared: then checksums that a link did not bring make a fetch fail as well. */
    private final boolean comparing;
    /** Whether a source cannot be complete before it has said which of the pages it has. */
    private final boolean dividesPages;

    private final String shutDownReason;

    private final Map<String, FetchFacts> fetches = new HashMap<>();
    private final Map<String, Long> askedNs = new HashMap<>();
    /** Fetches that fail for a reason of their own, or of which that has been reported. */
    private final Set<String> excused = new HashSet<>();
    /** By fetch and node: the admission that its grant let write. */
    private final Map<String, Integer> grantedTo = new HashMap<>();
    /** By process and node: the last admission. */
    private final Map<String, Integer> admissions = new HashMap<>();
    /** When the first link ended over which a fetch had been granted. */
    private final Map<String, Long> endedNs = new HashMap<>();

    /** By decoder and id of a grant: the fetch. */
    private final Map<String, String> byGrant = new HashMap<>();
    /** Fetches of whose last grant it is known which pages come from where. */
    private final Set<String> shared = new HashSet<>();

    private final LeftLinks left = new LeftLinks();

    VerdictChecker(
            CountChecker counts,
            ToLongFunction<String> clock,
            ProtocolLimits limits,
            boolean comparing,
            boolean dividesPages,
            String shutDownReason) {
        this.counts = counts;
        this.clock = clock;
        this.limits = limits;
        this.comparing = comparing;
        this.dividesPages = dividesPages;
        this.shutDownReason = shutDownReason;
    }

    @Override
    public void linkClosed(String process, String peer, boolean dialled, String reason) {
        if (left.take(process, peer) || !dialled) {
            return; // nothing was under way; or over this one the peer fetches
        }
        String closed = nodeOf(peer);
        for (FetchFacts fetch : fetchesOf(process)) {
            String key = process + " " + fetch.request();
            for (String node : fetch.prefillers()) {
                boolean granted = grantedTo.containsKey(key + " " + node);
                if (node.equals(closed) && granted) {
                    endedNs.putIfAbsent(key, clock.applyAsLong(process));
                } else if (!granted && (node.equals(closed) || peer.equals(NO_PEER))) {
                    excused.add(key); // it had no window: its fetch fails at once
                }
            }
        }
    }

    @Override
    public void admitted(String process, String peerName, int admissionId) {
        admissions.put(process + " " + nodeOf(peerName), admissionId);
    }

    @Override
    public void admissionClosed(String process, int admissionId) {
        for (FetchFacts fetch : fetchesOf(process)) {
            String key = process + " " + fetch.request();
            boolean wrote = fetch.prefillers().stream()
                    .anyMatch(node -> grantedTo.getOrDefault(key + " " + node, NO_ADMISSION) == admissionId);
            if (wrote && !counts.hasAll(process, fetch.request())) {
                excused.add(key);
            }
        }
    }

    private List<FetchFacts> fetchesOf(String process) {
        return fetches.values().stream()
                .filter(fetch -> fetch.process().equals(process))
                .toList();
    }

    /** Of a process, or as messengers name a peer: its engine, then its address. */
    private static String nodeOf(String name) {
        return name.replaceFirst(".* at ", "").replaceFirst("[#:].*", "");
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        left.frameSent(from, to, frame);
        if (frame.hasGrant()) {
            String key = from + " " + counts.grantedBy(from, frame.getGrant()).request();
            byGrant.put(from + " " + frame.getGrant().getGrantId(), key);
            shared.remove(key);
            grantedTo.put(key + " " + nodeOf(to), admissions.getOrDefault(from + " " + nodeOf(to), NO_ADMISSION));
        }
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + " " + fetch.request(), fetch);
        askedNs.put(fetch.process() + " " + fetch.request(), clock.applyAsLong(fetch.process()));
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        excused.add(process + " " + request);
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasShares()) {
            shared.add(byGrant.get(to + " " + frame.getShares().getGrantId()));
        }
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
    public void fetchQuarantined(String process, String request, String reason) {
        String key = process + " " + request;
        boolean endedLongAgo = endedNs.containsKey(key)
                && clock.applyAsLong(process) - endedNs.get(key) >= limits.silenceLimitNs() / 5;
        if (!isExcused(key, reason) && !endedLongAgo) {
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
        forget(key);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        forget(process + " " + request);
    }

    private void forget(String key) {
        fetches.remove(key);
        askedNs.remove(key);
        endedNs.remove(key);
    }

    private boolean isExcused(String key, String reason) {
        FetchFacts fetch = fetches.get(key);
        long limitNs = fetch.limitNs() > 0 ? fetch.limitNs() : limits.fetchLimitNs();
        boolean late = clock.applyAsLong(fetch.process()) - askedNs.get(key) >= limitNs;
        boolean planted = reason.endsWith(PlantedFault.SENTENCE); // a port of its own has failed it
        boolean unknown = comparing || (dividesPages && !shared.contains(key));
        return late || planted || unknown || excused.contains(key) || reason.equals(shutDownReason);
    }
}
