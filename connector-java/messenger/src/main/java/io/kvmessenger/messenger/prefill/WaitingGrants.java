package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import io.kvmessenger.messenger.session.Deadlines;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Grants whose prefill has not started yet, each bounded by a deadline, and the memory of ended transfers. Owned by the
 * messenger's thread.
 */
final class WaitingGrants {
    private static final String NO_INTAKE =
            "the request came to the decoder only and this prefiller does not know its own engine's address: "
                    + "set engine_api_url on the prefiller";

    static final String CANCELLED = "the decoder cancelled the transfer";
    static final String DECLINED = "the decoder declined the transfer";
    static final String SERVED = "the decoder has had all of the transfer, or wants nothing more of it";

    private final Replies replies;
    private final EngineIntake intake;
    private final EngineEvents engine;
    private final ProtocolLimits limits;
    private final Capacities capacities;
    private final BroughtPrompts brought;
    private final Prefills prefills;

    /** Grants of each id in order of arrival. */
    private final Map<String, List<PageGrant>> byTransferId = new LinkedHashMap<>();

    /** All of them, oldest first. */
    private final Set<PageGrant> inOrder = new LinkedHashSet<>();
    /** When each grant is checked again; its limit may have been extended meanwhile. */
    private final Deadlines<PageGrant> due = new Deadlines<>();

    private final UnheardWait unheard;
    /** How recent transfers ended, so that a grant for one of them gets the reason. */
    private final EndedTransfers ended;
    /** By decoder: bytes of its waiting grants' page lists. */
    private final Map<DecoderSession, Long> bytesOf = new HashMap<>();

    private long bytes;
    /** Ranks that need nothing of a transfer whose prefill has not begun: it will not wait for their grants. */
    private final Map<TransferKey, Dismissal> dismissed;

    private String shutDownReason = "";

    /**
     * What ranks of one decoder have declined before a prefill began.
     *
     * @param ranks those that need nothing (more)
     * @param needing all ranks of that decoder that need something of this prefiller
     * @param sentence why, for the engine that begins such a prefill
     * @param untilNs when it expires: its request is long over then, and the id may be reused
     */
    record Dismissal(EngineRanks ranks, EngineRanks needing, String sentence, long untilNs) {}

    WaitingGrants(
            Replies replies,
            EngineIntake intake,
            EngineEvents engine,
            ProtocolLimits limits,
            Prefills prefills,
            EndedTransfers ended) {
        this.prefills = prefills;
        this.ended = ended;
        this.replies = replies;
        this.intake = intake;
        this.engine = engine;
        this.limits = limits;
        this.unheard = new UnheardWait(limits);
        this.capacities = limits.capacities();
        // one that waits is not forgotten: its decoder's other messengers bring the prompt too
        this.brought = new BroughtPrompts(capacities.grantsWaitingMax() + capacities.endedTransfersMax());
        this.dismissed = new BoundedMap<>(capacities.endedTransfersMax());
    }

    /** Keeps a grant; if it carries the prompt's tokens, the prompt is enqueued in this prefiller's own engine. */
    void await(PageGrant grant, EngineCommand.Prompt prompt) {
        if (!prompt.absent() && !intake.available()) {
            replies.decline(grant, Reason.NEVER_CAME, NO_INTAKE);
            return;
        }
        enqueue(grant.transfer(), grant.ranks(), prompt);
        add(grant);
    }

    /** Enqueues a prompt once per request, though each of the decoder's messengers may send it. */
    void enqueue(TransferKey transfer, EngineRanks bringer, EngineCommand.Prompt prompt) {
        if (prompt.absent() || !shutDownReason.isEmpty()) {
            return; // an engine that shuts down begins no prompt; its other messengers decline the grants for it
        }
        if (!intake.available()) {
            engine.log(EngineLog.Level.ERROR, "transfer " + transfer.id() + ": " + NO_INTAKE);
        } else if (brought.add(transfer, bringer, prefills.mayBeSeveral(transfer))) {
            intake.enqueue(transfer, prompt);
        }
    }

    /** Forgets one request for a prompt that the engine has computed or given up; sent again, it is a new request. */
    void forgetPrompt(TransferKey transfer) {
        brought.removeOne(transfer);
    }

    /** The engine rejected a prompt, which may be sent again. Removes and returns the grants that waited for it. */
    List<PageGrant> takeBack(TransferKey transfer) {
        brought.removeAll(transfer);
        List<PageGrant> taken = byTransferId.getOrDefault(transfer.id(), List.of()).stream()
                .filter(grant -> grant.transfer().equals(transfer))
                .toList();
        taken.forEach(this::remove);
        return taken;
    }

    /** Keeps a grant until its prefill starts, or declines it. */
    private void add(PageGrant grant) {
        Optional<PageGrant> rival = byTransferId.getOrDefault(grant.transferId(), List.of()).stream()
                .filter(other -> areRivals(other, grant))
                .findFirst();
        if (rival.isPresent()) {
            String other = rival.get().session().peerName();
            replies.decline(
                    grant, Reason.GRANT_UNFIT, "transfer " + grant.transferId() + " is granted already by " + other);
        } else if (count() >= capacities.grantsWaitingMax()) {
            replies.decline(grant, Reason.GRANT_UNFIT, capacities.grantsWaitingMax() + " grants wait already");
        } else if (bytesOf.getOrDefault(grant.session(), 0L) + bytesOf(grant) > capacities.grantBytesWaitingMax()
                || bytes + bytesOf(grant) > capacities.grantBytesWaitingAllMax()) {
            replies.decline(
                    grant,
                    Reason.GRANT_UNFIT,
                    "the page lists of grants that wait for their prefill take too much memory already: send fewer"
                            + " requests at once, or their prefill legs sooner");
        } else {
            forgetDismissal(grant);
            byTransferId
                    .computeIfAbsent(grant.transferId(), unknown -> new ArrayList<>(1))
                    .add(grant);
            due.set(grant, grant.receivedNs() + waitNs(grant, grant.receivedNs()));
            note(grant, 1);
        }
    }

    /** Whether both grants match the same prefill, which can serve only one of them. */
    private boolean areRivals(PageGrant one, PageGrant other) {
        boolean oneWord = !one.ranks().fits(other.ranks()) || one.ranks().intersects(other.ranks());
        boolean several = prefills.mayBeSeveral(one.transfer()) && prefills.mayBeSeveral(other.transfer());
        return oneWord && !several && one.transfer().mayMean(other.transfer());
    }

    /** Adds (1) or removes (-1) a waiting grant in the indices and sums. */
    private void note(PageGrant grant, int sign) {
        if (sign < 0) { // it would retain its page list
            inOrder.remove(grant);
            due.remove(grant);
        } else {
            inOrder.add(grant);
        }
        bytes += sign * bytesOf(grant);
        bytesOf.merge(grant.session(), sign * bytesOf(grant), (one, other) -> one + other == 0 ? null : one + other);
    }

    private static long bytesOf(PageGrant grant) {
        return (long) grant.pageCount() * Integer.BYTES;
    }

    private void forgetDismissal(PageGrant grant) {
        Dismissal dismissal = dismissed.get(grant.transfer());
        if (dismissal != null) {
            dismissal.ranks().remove(grant.ranks());
        }
    }

    /** Takes the next waiting grant for a prefill that has begun. */
    Optional<PageGrant> takeFor(Prefill prefill, long nowNs) {
        Optional<PageGrant> next = byTransferId.getOrDefault(prefill.transfer().id(), List.of()).stream()
                .filter(grant -> prefills.takes(prefill, grant))
                .findFirst();
        next.ifPresent(grant -> {
            remove(grant);
            unheard.came(nowNs - grant.receivedNs(), nowNs);
        });
        return next;
    }

    /** Grants that wait under this id. */
    List<PageGrant> of(String transferId) {
        return byTransferId.getOrDefault(transferId, List.of());
    }

    /** Declines a waiting grant whose prompt will not come. */
    void decline(PageGrant grant, String sentence, long nowNs) {
        remove(grant);
        brought.removeOne(grant.transfer());
        replies.decline(grant, Reason.NEVER_CAME, sentence);
        dismiss(grant.transfer(), grant.session(), sentence, nowNs); // a prefill that comes now waits for others only
    }

    /** Removes a grant that its decoder cancels; false if it does not wait here. */
    boolean cancel(DecoderSession session, String transferId, long grantId, long nowNs) {
        Optional<PageGrant> cancelled = byTransferId.getOrDefault(transferId, List.of()).stream()
                .filter(grant -> grant.is(session, grantId))
                .findFirst();
        cancelled.ifPresent(grant -> {
            remove(grant);
            dismiss(grant.transfer(), session, CANCELLED, nowNs);
        });
        return cancelled.isPresent();
    }

    /** Records that the peer's ranks will not grant a prefill that has not begun, or its next attempt. */
    void dismiss(TransferKey transfer, DecoderSession session, String sentence, long nowNs) {
        dismiss(transfer, session.peerCache().ranks(), session.peerCache().needingRanks(), sentence, nowNs);
    }

    /** The same for ranks {@code done}, of the ranks {@code needing} something of this prefiller. */
    void dismiss(TransferKey transfer, EngineRanks done, EngineRanks needing, String sentence, long nowNs) {
        if (done.isEmpty()) {
            return;
        }
        Dismissal known = dismissed.get(transfer);
        boolean adds =
                known != null && nowNs - known.untilNs() < 0 && known.ranks().fits(done);
        EngineRanks ranks = EngineRanks.copyOf(adds ? known.ranks() : done);
        ranks.add(done);
        dismissed.put(transfer, new Dismissal(ranks, needing, sentence, nowNs + limits.grantWaitNs()));
    }

    /** Takes the ranks that dismissed a transfer before its prefill began; called once, when it begins. */
    Optional<Dismissal> takeDismissed(TransferKey transfer, long nowNs) {
        return Optional.ofNullable(dismissed.remove(transfer))
                .filter(dismissal -> nowNs - dismissal.untilNs() < 0)
                .filter(dismissal -> !dismissal.ranks().isEmpty());
    }

    /** Removes the grants of an ended session, and records that none will follow for their fetches. */
    void drop(DecoderSession session, String reason, long nowNs) {
        List<PageGrant> dropped =
                inOrder.stream().filter(grant -> grant.session() == session).toList();
        for (PageGrant grant : dropped) {
            remove(grant);
            dismiss(grant.transfer(), session, reason, nowNs);
        }
    }

    /** Declines all waiting grants; later ones are declined on arrival. */
    void shutDown(String sentence) {
        shutDownReason = sentence;
        byTransferId.values().stream()
                .flatMap(List::stream)
                .forEach(grant -> replies.decline(grant, Reason.SHUTTING_DOWN, sentence));
        byTransferId.clear();
        inOrder.forEach(due::remove);
        inOrder.clear();
        bytesOf.clear();
        bytes = 0;
    }

    /** Why no grant is accepted any more; empty while grants are accepted. */
    String shutDownReason() {
        return shutDownReason;
    }

    /**
     * Declines grants whose prefill has not come in time. Returns their number.
     *
     * @param namedPromptsNs when the engine could last name the prompts that it has queued
     */
    int expire(long nowNs, long namedPromptsNs) {
        int expired = 0;
        for (PageGrant grant = due.takeOver(nowNs); grant != null; grant = due.takeOver(nowNs)) {
            long waitNs = waitNs(grant, nowNs);
            long busyNs = Math.min(waitNs, grant.receivedNs() + limits.grantWaitNs() - nowNs);
            if (nowNs - grant.receivedNs() < waitNs) {
                due.set(grant, grant.receivedNs() + waitNs);
            } else if (namedPromptsNs - grant.receivedNs() < 0 && busyNs > 0) {
                due.set(grant, nowNs + busyNs); // one forward pass for all that time: the prompt may wait behind it
            } else {
                decline(grant, neverCame(grant, waitNs), nowNs);
                expired++;
            }
        }
        return expired;
    }

    /** How long the grant may wait, from its arrival on. */
    private long waitNs(PageGrant grant, long nowNs) {
        return isHeardOf(grant) ? limits.grantWaitNs() : Math.max(grant.unheardLimitNs(), unheard.waitNs(nowNs));
    }

    private boolean isHeardOf(PageGrant grant) {
        return brought.knows(grant.transfer()) || prefills.any(grant.transfer()) || ended.knows(grant.transfer());
    }

    private void remove(PageGrant grant) {
        List<PageGrant> grants = byTransferId.get(grant.transferId());
        grants.removeIf(waiting -> waiting.is(grant.session(), grant.id()));
        note(grant, -1);
        if (grants.isEmpty()) {
            byTransferId.remove(grant.transferId());
        }
    }

    private String neverCame(PageGrant grant, long waitNs) {
        return "no request with transfer id " + grant.transferId() + " reached the prefiller within "
                + waitNs / 1_000_000 + " ms ("
                + (isHeardOf(grant) ? "grant_wait_seconds" : "unheard_limit_seconds") + ")"
                + ended.endFor(grant.session(), grant.transfer())
                        .map(end -> "; of an earlier one with that id: " + end)
                        .orElseGet(() -> namesake(grant));
    }

    /** Names what the engine computed under that id instead: the sides often make different prompts of a request. */
    private String namesake(PageGrant grant) {
        if (prefills.anyOtherPrompt(grant.transfer()) || ended.knowsOtherPrompt(grant.transfer())) {
            return "; one with that id and another prompt did (their digests differ): start both engines with the same"
                    + " tokenizer, adapters and connector version";
        }
        return prefills.any(grant.transfer())
                ? "; the one with that id and prompt was granted or given up already"
                : ": look whether the prefiller's server rejected it, and whether the router sends both legs, with one id";
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        return due.earliestNs(latestNs);
    }

    /** All waiting grants, oldest first. */
    Collection<PageGrant> all() {
        return inOrder;
    }

    int count() {
        return inOrder.size();
    }
}
