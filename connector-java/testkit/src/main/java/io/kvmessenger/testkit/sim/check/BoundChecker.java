package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * On a sound network every end comes soon after its cause, and no control link is closed: the end of a fetch after the
 * engine abandoned it, its limit, or the ends of its prefills; the release of a prefill after its end and its decoders'
 * answers.
 *
 * <p>A limit counts as the cause of an end only if the other side has no answer to give: with one leg only, or with one
 * that is too late.
 */
public final class BoundChecker implements WorldListener {
    /**
     * From a cause to its end: some messages in sequence, a handshake among them, and the writes of all requests (of
     * 20,000 seeds the slowest took 13 ms for 2,900 of them). The shortest limit is 60 ms.
     *
     * <p>If a device has the pages, the writes wait for slabs as well. A slab is held while it is gathered, behind at
     * most 23 others on its stream (24 copies, two halves of 10 us each: 0.5 ms), and until its path has reported it as
     * sent (it is read, lands, is taken and reported: four hops of at most 0.3 ms, each noticed within 20 us: 1.4 ms).
     * So at least 24 slabs leave in 1.9 ms, 12 in each ms and twice as many on average; the writes of one end are some
     * hundred slabs. With sequential copies of a hop each only 2 or 3 would leave in each ms, and some ends would be
     * late: so a device of a sound world is that fast.
     */
    public static final long BOUND_NS = 20_000_000;

    private static final long NEVER = Long.MAX_VALUE / 2;

    /** The state of a transfer's prompt at one node's engine. */
    private static final class Prompt {
        /** Since when it has no pages; NEVER while it has some. */
        long goneNs;

        long begunNs = NEVER;
        long endedNs = NEVER;
        boolean finished;
    }

    /** The state of a transfer at one decoder's node. */
    private static final class Wanted {
        FetchFacts fetch;
        long askedNs = NEVER;
        long abandonedNs = NEVER;
        /** The fetch has ended, or there will be none. */
        long overNs = NEVER;
        /** It was for another prompt than the prefiller's: the right one may still come. */
        boolean unfit;

        /** The prefillers' nodes that are told about it; a router may have forgotten one. */
        List<String> named = List.of();
        /** Those of them that send it nothing: they were declined, and had no grant before. */
        final Set<String> notNeeded = new HashSet<>();

        final Set<String> granted = new HashSet<>();
    }

    private record Route(List<String> prefillers, List<String> decoders) {}

    private final LongSupplier clock;
    private final ProtocolLimits limits;
    private final Map<String, Route> routes = new HashMap<>();
    private final Map<String, Prompt> prompts = new HashMap<>();
    private final Map<String, String> transferByPrefill = new HashMap<>();
    private final Map<String, Wanted> wanted = new HashMap<>();
    private final Map<String, Wanted> byFetch = new HashMap<>();
    /** By prefiller and id; an id with a rejected request belongs to one prompt only. */
    private final Map<String, Long> rejections = new HashMap<>();

    private final LeftLinks left = new LeftLinks();

    public BoundChecker(LongSupplier clock, ProtocolLimits limits) {
        this.clock = clock;
        this.limits = limits;
    }

    static String nodeOf(String process) {
        return process.substring(0, process.indexOf('#'));
    }

    private Prompt prompt(String node, String transferId) {
        return prompts.computeIfAbsent(node + " " + transferId, key -> new Prompt());
    }

    private Wanted wanted(String node, String transferId) {
        return wanted.computeIfAbsent(node + " " + transferId, key -> new Wanted());
    }

    @Override
    public void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {
        routes.put(transferId, new Route(prefillers, decoders));
    }

    @Override
    public void linkClosed(String process, String peer, boolean dialled, String reason) {
        if (left.take(process, peer)) {
            return;
        }
        throw violation("nothing is wrong with the network, and " + process + " has no link to " + peer + " any more: "
                + reason);
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        left.frameSent(from, to, frame);
        if (frame.hasCannotDeliver() && frame.getCannotDeliver().getReason() == Reason.GRANT_UNFIT) {
            CannotDeliver answer = frame.getCannotDeliver();
            wanted(nodeOf(to), PromptName.of(answer.getTransferId(), answer.getPromptDigest())).unfit = true;
        } else if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            wanted(nodeOf(from), PromptName.of(grant.getTransferId(), grant.getPromptDigest()))
                    .granted
                    .add(nodeOf(to));
        } else if (frame.hasDecline()) {
            Decline decline = frame.getDecline();
            Wanted by = wanted(nodeOf(from), PromptName.of(decline.getTransferId(), decline.getPromptDigest()));
            if (!by.granted.contains(nodeOf(to))) {
                by.notNeeded.add(nodeOf(to));
            }
        }
    }

    // ---- prefills

    @Override
    public void prefillBegun(String process, String request, String transferId) {
        transferByPrefill.put(process + " " + request, transferId);
        Prompt prompt = prompt(nodeOf(process), transferId);
        prompt.goneNs = NEVER;
        prompt.begunNs = clock.getAsLong();
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        Prompt prompt = prompt(nodeOf(process), transferId);
        prompt.goneNs = clock.getAsLong();
        prompt.begunNs = NEVER;
    }

    @Override
    public void prefillEnded(String process, String request, String transferId, PrefillOutcome outcome) {
        transferByPrefill.put(process + " " + request, transferId);
        Prompt prompt = prompt(nodeOf(process), transferId);
        prompt.endedNs = clock.getAsLong();
        prompt.finished = outcome == PrefillOutcome.FINISHED;
    }

    @Override
    public void prefillReleased(String process, String request) {
        String transferId = transferByPrefill.get(process + " " + request);
        Prompt prompt = prompt(nodeOf(process), transferId);
        long dueNs = prompt.endedNs;
        Long rejectedNs = rejections.get(nodeOf(process) + " " + transferId);
        if (prompt.finished && rejectedNs != null && rejectedNs > prompt.begunNs) {
            dueNs = Math.max(dueNs, rejectedNs) + limits.rejectedWaitNs();
        } else if (prompt.finished) {
            Route route = routes.get(transferId);
            boolean mayExpire = route.decoders.isEmpty();
            for (String decoder : route.decoders) {
                Wanted by = wanted(decoder, transferId);
                dueNs = Math.max(dueNs, by.overNs);
                mayExpire |= by.unfit || !by.named.contains(nodeOf(process));
                mayExpire |= by.overNs + limits.grantWaitNs() < prompt.begunNs;
            }
            dueNs = mayExpire ? Math.max(dueNs, prompt.endedNs + limits.grantWaitNs()) : dueNs;
        }
        check(request + " was released", dueNs);
    }

    // ---- fetches

    @Override
    public void fetchAsked(FetchFacts fetch) {
        Wanted by = wanted(nodeOf(fetch.process()), fetch.transferId());
        by.fetch = fetch;
        by.named = fetch.prefillers();
        by.askedNs = clock.getAsLong();
        byFetch.put(fetch.process() + " " + fetch.request(), by);
    }

    @Override
    public void transferDeclined(String process, String transferId, List<String> prefillers) {
        Wanted by = wanted(nodeOf(process), transferId);
        by.named = List.copyOf(prefillers);
        by.overNs = clock.getAsLong();
    }

    @Override
    public void transferRejected(String process, String transferId, List<String> prefillers) {
        prefillers.forEach(node -> rejections.merge(node + " " + transferId, clock.getAsLong(), Math::max));
    }

    @Override
    public void fetchAbandoned(String process, String request) {
        byFetch.get(process + " " + request).abandonedNs = clock.getAsLong();
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        fetchOver(process, request);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        fetchOver(process, request);
    }

    private void fetchOver(String process, String request) {
        Wanted by = byFetch.get(process + " " + request);
        by.overNs = clock.getAsLong();
        check(request + " ended", Math.min(by.abandonedNs, Math.min(limitNs(by), sourcesNs(by))));
    }

    private long limitNs(Wanted by) {
        return by.askedNs + (by.fetch.limitNs() > 0 ? by.fetch.limitNs() : limits.fetchLimitNs());
    }

    /** When the prefillers' part was determined: all had finished, or one of them would not deliver. */
    private long sourcesNs(Wanted by) {
        long allFinishedNs = by.askedNs;
        long oneFailsNs = NEVER;
        for (String prefiller : by.named) {
            if (by.notNeeded.contains(prefiller)) {
                continue;
            }
            Prompt prompt = prompt(prefiller, by.fetch.transferId());
            boolean ended = prompt.endedNs < NEVER;
            if (!ended || !prompt.finished) {
                allFinishedNs = NEVER;
            }
            if (ended && prompt.finished) {
                allFinishedNs = Math.max(allFinishedNs, prompt.endedNs);
            } else if (ended && by.askedNs + BOUND_NS < prompt.endedNs && prompt.begunNs < NEVER) {
                oneFailsNs = Math.min(oneFailsNs, prompt.endedNs);
            } else if (ended || prompt.begunNs == NEVER) {
                long sinceNs = Math.max(by.askedNs, ended ? prompt.endedNs : prompt.goneNs);
                oneFailsNs = Math.min(oneFailsNs, sinceNs + limits.grantWaitNs());
            }
        }
        return Math.min(allFinishedNs, oneFailsNs);
    }

    private void check(String what, long dueNs) {
        long lateNs = clock.getAsLong() - dueNs;
        if (lateNs > BOUND_NS) {
            throw violation(what + " " + lateNs / 1000 + " us after its cause, expected " + BOUND_NS / 1000);
        }
    }

    private static Violation violation(String sentence) {
        return new Violation("Bound", sentence);
    }
}
