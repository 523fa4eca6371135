package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Grants whose prefill has not started yet, each bounded by a deadline, and what is remembered of transfers that are
 * over. Owned by the messenger's thread.
 */
final class WaitingGrants {
    private static final String NO_INTAKE =
            "the request came to the decoder only and this prefiller does not know its own engine's address: "
                    + "set engine_api_url on the prefiller";

    private final Replies replies;
    private final EngineIntake intake;
    private final EngineEvents engine;
    private final ProtocolLimits limits;
    /** Prompts that decoders brought and the engine has been asked to compute. */
    private final Map<String, Boolean> enqueued = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);

    private final Map<String, List<PageGrant>> byTransfer = new LinkedHashMap<>();
    private int count;
    /** In the order of their deadlines. */
    private final ArrayDeque<PageGrant> byDeadline = new ArrayDeque<>();
    /** How recent transfers ended, so that a grant that waited in vain gets a precise answer. */
    private final EndedTransfers ended;
    /** Of the page lists that wait, by decoder. */
    private final Map<Session, Long> bytesOf = new HashMap<>();

    private long bytes;
    /** Ranks that want nothing (more) of a transfer whose prefill has not begun: nobody need wait for their grant. */
    private final Map<String, Dismissal> dismissed = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);

    private String shutDownReason = "";

    /**
     * What ranks of one decoder have said before a prefill began.
     *
     * @param ranks those that want nothing (more)
     * @param needing all of that decoder that need something of this prefiller
     * @param untilNs later it counts no more: its request is long over, and the id may be used again
     */
    record Dismissal(EngineRanks ranks, EngineRanks needing, long untilNs) {}

    WaitingGrants(
            Replies replies, EngineIntake intake, EngineEvents engine, ProtocolLimits limits, EndedTransfers ended) {
        this.ended = ended;
        this.replies = replies;
        this.intake = intake;
        this.engine = engine;
        this.limits = limits;
    }

    /** Keeps a grant; if it brings the prompt's tokens, the prompt is enqueued in this prefiller's own engine. */
    void await(PageGrant grant, EngineCommand.Prompt prompt) {
        if (!prompt.absent() && !intake.available()) {
            replies.decline(grant, Reason.NEVER_CAME, NO_INTAKE);
            return;
        }
        enqueue(grant.transferId(), prompt);
        add(grant);
    }

    /** Each of the decoder's messengers may bring the prompt; the engine gets it once. */
    void enqueue(String transferId, EngineCommand.Prompt prompt) {
        if (prompt.absent() || !shutDownReason.isEmpty()) {
            return; // an engine that shuts down begins no prompt; its other messengers decline the grants for it
        }
        if (!intake.available()) {
            engine.log(EngineEvents.Level.ERROR, "transfer " + transferId + ": " + NO_INTAKE);
        } else if (enqueued.put(transferId, true) == null) {
            intake.enqueue(transferId, prompt);
        }
    }

    /** The engine has computed a prompt or given it up: one of that id that is brought from now on is another. */
    void forgetPrompt(String transferId) {
        enqueued.remove(transferId);
    }

    /** The engine did not take a prompt; it may be brought again. */
    List<PageGrant> takeBack(String transferId) {
        enqueued.remove(transferId);
        return take(transferId);
    }

    /** Keeps a grant until its prefill starts, or declines it. */
    private void add(PageGrant grant) {
        List<PageGrant> others = byTransfer.getOrDefault(grant.transferId(), List.of());
        Optional<PageGrant> rival = others.stream()
                .filter(other ->
                        !other.ranks().fits(grant.ranks()) || other.ranks().intersects(grant.ranks()))
                .findFirst();
        if (rival.isPresent()) {
            String other = rival.get().session().peerName();
            replies.decline(
                    grant, Reason.GRANT_UNFIT, "transfer " + grant.transferId() + " is granted already by " + other);
        } else if (count >= ProtocolLimits.GRANTS_WAITING_MAX) {
            replies.decline(grant, Reason.GRANT_UNFIT, ProtocolLimits.GRANTS_WAITING_MAX + " grants wait already");
        } else if (bytesOf.getOrDefault(grant.session(), 0L) + bytesOf(grant) > ProtocolLimits.GRANT_BYTES_WAITING_MAX
                || bytes + bytesOf(grant) > ProtocolLimits.GRANT_BYTES_WAITING_ALL_MAX) {
            replies.decline(
                    grant,
                    Reason.GRANT_UNFIT,
                    "the page lists of grants that wait for their prefill take too much memory already: send fewer"
                            + " requests at once, or their prefill legs sooner");
        } else {
            forgetDismissal(grant);
            byTransfer
                    .computeIfAbsent(grant.transferId(), transfer -> new ArrayList<>())
                    .add(grant);
            byDeadline.add(grant);
            note(grant, 1);
        }
    }

    /** Counts a grant that begins (1) or ends (-1) to wait. Always true. */
    private boolean note(PageGrant grant, int sign) {
        count += sign;
        if (sign < 0) {
            byDeadline.remove(grant); // it would keep its page list
        }
        bytes += sign * bytesOf(grant);
        bytesOf.merge(grant.session(), sign * bytesOf(grant), (one, other) -> one + other == 0 ? null : one + other);
        return true;
    }

    private static long bytesOf(PageGrant grant) {
        return (long) grant.pages().length * Integer.BYTES;
    }

    private void forgetDismissal(PageGrant grant) {
        Dismissal dismissal = dismissed.get(grant.transferId());
        if (dismissal != null) {
            dismissal.ranks().remove(grant.ranks());
        }
    }

    /** All grants of a transfer; none of them waits any more. */
    List<PageGrant> take(String transferId) {
        List<PageGrant> grants = byTransfer.remove(transferId);
        if (grants == null) {
            return List.of();
        }
        grants.forEach(grant -> note(grant, -1));
        return grants;
    }

    /** Takes a grant away that its decoder cancels; false when it does not wait here. */
    boolean cancel(Session session, String transferId, int imm, long nowNs) {
        List<PageGrant> grants = byTransfer.get(transferId);
        if (grants != null
                && grants.removeIf(grant -> grant.session() == session && grant.imm() == imm && note(grant, -1))) {
            if (grants.isEmpty()) {
                byTransfer.remove(transferId);
            }
            dismiss(transferId, session, nowNs);
            return true;
        }
        return false;
    }

    /** No grant will come from the peer's ranks for a prefill that has not begun, or for its next life. */
    void dismiss(String transferId, Session session, long nowNs) {
        dismiss(transferId, session.peerRanks, session.needingRanks, nowNs);
    }

    /** The same of some ranks that need something of this prefiller. */
    void dismiss(String transferId, EngineRanks done, EngineRanks needing, long nowNs) {
        if (done.isEmpty()) {
            return;
        }
        Dismissal known = dismissed.get(transferId);
        boolean adds =
                known != null && nowNs - known.untilNs() < 0 && known.ranks().fits(done);
        EngineRanks ranks = EngineRanks.copyOf(adds ? known.ranks() : done);
        ranks.add(done);
        dismissed.put(transferId, new Dismissal(ranks, needing, nowNs + limits.grantWaitNs()));
    }

    /** The ranks that had dismissed a transfer before its prefill began; asked once, when it begins. */
    Optional<Dismissal> takeDismissed(String transferId, long nowNs) {
        return Optional.ofNullable(dismissed.remove(transferId))
                .filter(dismissal -> nowNs - dismissal.untilNs() < 0)
                .filter(dismissal -> !dismissal.ranks().isEmpty());
    }

    void drop(Session session) {
        byTransfer.values().removeIf(grants -> {
            grants.removeIf(grant -> grant.session() == session && note(grant, -1));
            return grants.isEmpty();
        });
    }

    /** Declines all; those that come later are declined where they come in. */
    void shutDown(String sentence) {
        shutDownReason = sentence;
        byTransfer.values().stream()
                .flatMap(List::stream)
                .forEach(grant -> replies.decline(grant, Reason.SHUTTING_DOWN, sentence));
        byTransfer.clear();
        byDeadline.clear();
        bytesOf.clear();
        bytes = 0;
        count = 0;
    }

    /** Why no grant is taken any more; empty while they are. */
    String shutDownReason() {
        return shutDownReason;
    }

    /** Declines grants whose prefill has not come in time. Returns how many. */
    int expire(long nowNs) {
        int expired = 0;
        for (PageGrant grant = byDeadline.peek();
                grant != null && nowNs - grant.deadlineNs() >= 0;
                grant = byDeadline.peek()) {
            remove(grant);
            expired++;
            enqueued.remove(grant.transferId());
            replies.decline(grant, Reason.NEVER_CAME, neverCame(grant));
            dismiss(grant.transferId(), grant.session(), nowNs); // a prefill that comes now waits for others only
        }
        return expired;
    }

    private void remove(PageGrant grant) {
        List<PageGrant> grants = byTransfer.get(grant.transferId());
        grants.removeIf(grant::isSame);
        note(grant, -1);
        if (grants.isEmpty()) {
            byTransfer.remove(grant.transferId());
        }
    }

    private String neverCame(PageGrant grant) {
        return "no request with transfer id " + grant.transferId() + " reached the prefiller within "
                + limits.grantWaitNs() / 1_000_000 + " ms (grant_wait_seconds)"
                + ended.endFor(grant.session(), grant.transferId())
                        .map(end -> "; of an earlier one with that id: " + end)
                        .orElse("");
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        PageGrant next = byDeadline.peek();
        return next != null && next.deadlineNs() - latestNs < 0 ? next.deadlineNs() : latestNs;
    }

    int count() {
        return count;
    }
}
