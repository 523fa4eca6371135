package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/**
 * Grants whose prefill has not started yet, each bounded by a deadline, and what is remembered of transfers that are
 * over. Owned by the messenger's thread.
 */
final class WaitingGrants {
    private final Replies replies;
    private final EngineIntake intake;
    private final ProtocolLimits limits;
    private final Map<String, PageGrant> byTransfer = new LinkedHashMap<>();
    /** Why recent transfers ended, so that a late grant gets a precise answer. */
    private final Map<String, String> ended = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);
    /** Cancelled before their prefill began: nobody will ever grant them, so their pages need not wait. */
    private final Map<String, Boolean> cancelled = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);
    /** Grants of prompts that were preempted: whoever cancels one will not grant the prompt again. */
    private final Map<String, PageGrant> preempted = new BoundedMemory<>(ProtocolLimits.ENDED_TRANSFERS_MAX);

    private String shutDownReason = "";

    WaitingGrants(Replies replies, EngineIntake intake, ProtocolLimits limits) {
        this.replies = replies;
        this.intake = intake;
        this.limits = limits;
    }

    /** Keeps a grant; if it brings the prompt's tokens, the prompt is enqueued in this prefiller's own engine. */
    void await(PageGrant grant, int[] promptTokenIds) {
        if (promptTokenIds.length > 0) {
            if (!intake.available()) {
                replies.decline(
                        grant,
                        Reason.NEVER_CAME,
                        "the request came to the decoder only and this prefiller does not know its own engine's address: "
                                + "set engine_api_url on the prefiller");
                return;
            }
            intake.enqueue(grant.transferId(), promptTokenIds);
        }
        add(grant);
    }

    /** Keeps a grant until its prefill starts, or declines it. */
    private void add(PageGrant grant) {
        if (byTransfer.containsKey(grant.transferId())) {
            replies.decline(
                    grant,
                    Reason.GRANT_UNFIT,
                    "transfer " + grant.transferId() + " is granted already by "
                            + byTransfer.get(grant.transferId()).session().peerName());
        } else if (byTransfer.size() >= ProtocolLimits.GRANTS_WAITING_MAX) {
            replies.decline(grant, Reason.GRANT_UNFIT, ProtocolLimits.GRANTS_WAITING_MAX + " grants wait already");
        } else {
            cancelled.remove(grant.transferId());
            byTransfer.put(grant.transferId(), grant);
        }
    }

    Optional<PageGrant> take(String transferId) {
        return Optional.ofNullable(byTransfer.remove(transferId));
    }

    /** Takes a grant away that its decoder cancels; false when it does not wait here. */
    boolean cancel(Session session, String transferId, int imm) {
        PageGrant grant = byTransfer.get(transferId);
        if (grant == null || grant.session() != session || grant.imm() != imm) {
            return false;
        }
        byTransfer.remove(transferId);
        cancelled.put(transferId, true);
        return true;
    }

    /** No grant will come for a transfer whose prefill has not begun. */
    void decline(String transferId) {
        cancelled.put(transferId, true);
    }

    /** Whether the decoder cancelled before the prefill began; asked once, when it begins. */
    boolean takeCancelled(String transferId) {
        return cancelled.remove(transferId) != null;
    }

    /** A prompt lost its pages, and its grant ({@code null} when it had none) with them. */
    void preempted(PageGrant grant) {
        if (grant != null) {
            preempted.put(grant.transferId(), grant);
        }
    }

    /** Whether the decoder cancels the grant of a preempted prompt; asked once. */
    boolean takePreempted(Session session, String transferId, int imm) {
        PageGrant grant = preempted.get(transferId);
        if (grant == null || grant.session() != session || grant.imm() != imm) {
            return false;
        }
        preempted.remove(transferId);
        return true;
    }

    void drop(Session session) {
        preempted.values().removeIf(grant -> grant.session() == session);
        byTransfer.values().removeIf(grant -> grant.session() == session);
    }

    /** Declines all; those that come later are declined where they come in. */
    void shutDown(String sentence) {
        shutDownReason = sentence;
        byTransfer.values().forEach(grant -> replies.decline(grant, Reason.SHUTTING_DOWN, sentence));
        byTransfer.clear();
    }

    /** Why no grant is taken any more; empty while they are. */
    String shutDownReason() {
        return shutDownReason;
    }

    void remember(String transferId, String howItEnded) {
        ended.put(transferId, howItEnded);
    }

    /** How a transfer ended that a grant comes too late for. */
    Optional<String> endOf(String transferId) {
        return Optional.ofNullable(ended.get(transferId));
    }

    /** Declines grants whose prefill has not come in time. Returns how many. */
    int expire(long nowNs) {
        int expired = 0;
        for (Iterator<PageGrant> i = byTransfer.values().iterator(); i.hasNext(); ) {
            PageGrant grant = i.next();
            if (nowNs - grant.deadlineNs() >= 0) {
                i.remove();
                expired++;
                replies.decline(
                        grant,
                        Reason.NEVER_CAME,
                        "no request with transfer id " + grant.transferId()
                                + " reached the prefiller within " + limits.grantWaitNs() / 1_000_000
                                + " ms (grant_wait_seconds)");
            }
        }
        return expired;
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        long earliest = latestNs;
        for (PageGrant grant : byTransfer.values()) {
            if (grant.deadlineNs() - earliest < 0) {
                earliest = grant.deadlineNs();
            }
        }
        return earliest;
    }

    int count() {
        return byTransfer.size();
    }
}
