package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Deadlines;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The meetings of all transfers: how much waits in them, and until when.
 *
 * <p>A {@link Meeting} is kept as long as anything is in it. A prefill or a grant leaves when it ends, an announcement
 * with its answer or its session. What outlives meetings is in {@link TransferMemory}.
 *
 * <p>Owned by the messenger's thread. It neither begins nor stops prefills, and sends nothing.
 */
final class Meetings {
    final Prefills prefills = new Prefills();
    final TransferMemory memory;
    private final boolean contextFollows;
    private final ProtocolLimits limits;
    private final Capacities capacities;
    private final UnheardWait unheard;

    private final Map<String, Meeting> byId = new HashMap<>();
    /** All grants that wait, oldest first. */
    private final Set<PageGrant> waiting = new LinkedHashSet<>();
    /** Bytes of their page lists. */
    private long waitingBytes;

    /** Deadlines of all that waits, by {@link Due#rank}. */
    private final List<Deadlines<Due>> due =
            Stream.generate(Deadlines<Due>::new).limit(Due.KINDS).toList();

    /** @param contextFollows whether a transfer may have rows that belong to its request */
    Meetings(boolean contextFollows, ProtocolLimits limits) {
        this.contextFollows = contextFollows;
        this.limits = limits;
        this.capacities = limits.capacities();
        this.unheard = new UnheardWait(limits);
        this.memory = new TransferMemory(limits);
    }

    /** What is under way under this id; an empty meeting, which is not kept, if nothing is. */
    Meeting of(String id) {
        Meeting known = byId.get(id);
        return known == null ? new Meeting(id, contextFollows) : known;
    }

    Meeting of(TransferKey transfer) {
        return of(transfer.id());
    }

    /** The same, kept: something is about to be added. */
    private Meeting open(TransferKey transfer) {
        return byId.computeIfAbsent(transfer.id(), id -> new Meeting(id, contextFollows));
    }

    /** Something was removed. */
    private void tidy(Meeting meeting) {
        if (meeting.isEmpty()) {
            byId.remove(meeting.id, meeting);
        }
    }

    // ---- prefills

    /** The prefill that already uses this request id, or this transfer where only one may; null if none. */
    Prefill rivalOf(String request, TransferKey transfer) {
        Prefill same = prefills.of(request);
        return same == null ? of(transfer).rivalOf(transfer) : same;
    }

    void add(Prefill prefill, long nowNs) {
        prefill.rejected = memory.isRejected(prefill.transfer(), nowNs);
        prefills.add(prefill);
        open(prefill.transfer()).prefills.add(prefill);
    }

    void remove(Prefill prefill) {
        prefills.remove(prefill);
        queueOf(prefill).remove(prefill);
        Meeting meeting = of(prefill.transfer());
        meeting.prefills.remove(prefill);
        tidy(meeting);
    }

    /** Removes a prefill that is over. Its prompt, sent again by a decoder, is a new request. */
    void end(Prefill prefill, long nowNs) {
        remove(prefill);
        memory.forgetOneBrought(prefill.transfer());
        memory.ended(prefill, nowNs);
    }

    /** How long it waits for grants after its end. */
    long waitNs(Prefill prefill) {
        if (prefill.isOffer()) {
            return limits.offerLimitNs();
        }
        return prefill.rejected ? limits.rejectedWaitNs() : limits.grantWaitNs();
    }

    /** Sets when it gives up waiting for grants; effective once the engine has ended it. */
    void expireAt(Prefill prefill, long deadlineNs) {
        prefill.grantDeadlineNs = deadlineNs;
        if (prefill.ended() && prefills.has(prefill)) {
            setDue(prefill, deadlineNs);
        }
    }

    // ---- grants that wait

    /** Why a grant may not wait for its prefill; empty if it may. */
    String refusalOf(PageGrant grant) {
        Optional<PageGrant> rival = of(grant.transfer()).rivalOf(grant);
        if (rival.isPresent()) {
            return "transfer " + grant.transferId() + " is granted already by "
                    + rival.get().session().peerName();
        }
        if (waiting.size() >= capacities.grantsWaitingMax()) {
            return capacities.grantsWaitingMax() + " grants wait already";
        }
        if (grant.session().grantBytesWaiting + grant.bytes() > capacities.grantBytesWaitingMax()
                || waitingBytes + grant.bytes() > capacities.grantBytesWaitingAllMax()) {
            return "the page lists of grants that wait for their prefill take too much memory already: send fewer"
                    + " requests at once, or their prefill legs sooner";
        }
        return "";
    }

    /** Keeps a grant until its prefill begins. */
    void await(PageGrant grant) {
        memory.granted(grant.transfer(), grant.ranks());
        open(grant.transfer()).waiting.add(grant);
        waiting.add(grant);
        count(grant, grant.bytes());
        setDue(grant, grant.receivedNs() + waitNs(grant, grant.receivedNs()));
    }

    void remove(PageGrant grant) {
        if (!waiting.remove(grant)) {
            return;
        }
        count(grant, -grant.bytes());
        queueOf(grant).remove(grant); // it would retain its page list
        Meeting meeting = of(grant.transfer());
        meeting.waiting.remove(grant);
        tidy(meeting);
    }

    private void count(PageGrant grant, long bytes) {
        waitingBytes += bytes;
        grant.session().grantBytesWaiting += bytes;
    }

    /** Takes the next waiting grant for a prefill that has begun. */
    Optional<PageGrant> takeFor(Prefill prefill, long nowNs) {
        Optional<PageGrant> next = of(prefill.transfer()).nextFor(prefill);
        next.ifPresent(grant -> {
            remove(grant);
            unheard.came(nowNs - grant.receivedNs(), nowNs);
        });
        return next;
    }

    /** Removes a waiting grant that is not to be served; a prefill that begins now waits for others only. */
    void withdraw(PageGrant grant, String sentence, long nowNs) {
        remove(grant);
        dismiss(grant.transfer(), grant.session(), sentence, nowNs);
    }

    /**
     * Why a due grant waits no longer; empty if it goes on waiting.
     *
     * @param namedPromptsNs when the engine could last name the prompts that it has queued
     */
    Optional<String> late(PageGrant grant, long nowNs, long namedPromptsNs) {
        long waitNs = waitNs(grant, nowNs);
        long busyNs = Math.min(waitNs, grant.receivedNs() + limits.grantWaitNs() - nowNs);
        if (nowNs - grant.receivedNs() < waitNs) {
            setDue(grant, grant.receivedNs() + waitNs);
        } else if (namedPromptsNs - grant.receivedNs() < 0 && busyNs > 0) {
            setDue(grant, nowNs + busyNs); // one forward pass for all that time: the prompt may wait behind it
        } else {
            return Optional.of(neverCame(grant, waitNs));
        }
        return Optional.empty();
    }

    /** How long the grant may wait, from its arrival on. */
    private long waitNs(PageGrant grant, long nowNs) {
        return isHeardOf(grant) ? limits.grantWaitNs() : Math.max(grant.unheardLimitNs(), unheard.waitNs(nowNs));
    }

    private boolean isHeardOf(PageGrant grant) {
        TransferKey transfer = grant.transfer();
        return memory.isBrought(transfer)
                || memory.hasEnded(transfer)
                || of(transfer).has(transfer);
    }

    private String neverCame(PageGrant grant, long waitNs) {
        return "no request with transfer id " + grant.transferId() + " reached the prefiller within "
                + waitNs / 1_000_000 + " ms ("
                + (isHeardOf(grant) ? "grant_wait_seconds" : "unheard_limit_seconds") + ")"
                + memory.endFor(grant.session(), grant.transfer())
                        .map(end -> "; of an earlier one with that id: " + end)
                        .orElseGet(() -> namesake(grant.transfer()));
    }

    /** Names what the engine computed under that id instead: the sides often make different prompts of a request. */
    private String namesake(TransferKey transfer) {
        Meeting meeting = of(transfer);
        if (meeting.hasOther(transfer) || memory.anotherEnded(transfer)) {
            return "; one with that id and another prompt did (their digests differ): start both engines with the same"
                    + " tokenizer, adapters and connector version";
        }
        return meeting.has(transfer)
                ? "; the one with that id and prompt was granted or given up already"
                : ": look whether the prefiller's server rejected it, and whether the router sends both legs, with one id";
    }

    /** All waiting grants, oldest first, a live view. */
    Collection<PageGrant> waiting() {
        return waiting;
    }

    // ---- answers that are announced, or will not come

    /** The session has announced an answer. One beyond its limit is dropped: its prefill then waits the usual limit. */
    void expect(DecoderSession session, TransferKey transfer, long nowNs) {
        Map<TransferKey, Announcement> announced = session.announced;
        if (!announced.containsKey(transfer) && announced.size() >= capacities.expectedTransfersMax()) {
            return;
        }
        Announcement announcement = announced.computeIfAbsent(transfer, unknown -> new Announcement(session, transfer));
        announcement.answers++;
        open(transfer).add(announcement);
        if (!queueOf(announcement).has(announcement)) {
            setDue(announcement, nowNs + limits.unheardLimitNs());
        }
    }

    /** The prompt of an announced answer is here, so that its end will be seen: it is looked at again later. */
    void expectLonger(Announcement announcement, long nowNs) {
        setDue(announcement, nowNs + limits.unheardLimitNs());
    }

    boolean isExpected(Prefill prefill) {
        return of(prefill.transfer()).isExpected(prefill);
    }

    /** The session has answered a transfer, perhaps one that it had announced: fewer answers are expected. */
    void answered(DecoderSession session, TransferKey transfer) {
        Announcement announcement = session.announced.get(transfer);
        if (announcement != null && --announcement.answers == 0) {
            remove(announcement);
        }
        of(transfer).meant(transfer).forEach(prefill -> expireAt(prefill, prefill.grantDeadlineNs));
    }

    private void remove(Announcement announcement) {
        announcement.session.announced.remove(announcement.transfer);
        queueOf(announcement).remove(announcement);
        Meeting meeting = of(announcement.transfer);
        meeting.remove(announcement);
        tidy(meeting);
    }

    /**
     * A session has ended, and with it its fetches. What it expected is kept as if its prefill had ended now, since the
     * decoder may reconnect.
     */
    void sessionEnded(DecoderSession session, String reason, long nowNs) {
        waiting.stream()
                .filter(grant -> grant.session() == session)
                .toList()
                .forEach(grant -> withdraw(grant, reason, nowNs));
        Set<TransferKey> expected = Set.copyOf(session.announced.keySet());
        List.copyOf(session.announced.values()).forEach(this::remove);
        for (Prefill prefill : prefills.all()) {
            if (prefill.ended() && expected.stream().anyMatch(prefill.transfer()::mayMean)) {
                expireAt(prefill, nowNs + limits.grantWaitNs());
            }
        }
    }

    /** Records that the session's ranks will not grant a prefill that has not begun, or its next attempt. */
    void dismiss(TransferKey transfer, DecoderSession session, String sentence, long nowNs) {
        KvPeer decoder = session.peerCache();
        memory.dismiss(transfer, decoder.ranks(), decoder.needingRanks(), sentence, nowNs);
    }

    // ---- requests that a decoder has rejected

    /** A request under this id is not at its decoder any more. It may come again, and others may have the same id. */
    void reject(String id, long nowNs) {
        long untilNs = nowNs + limits.rejectedWaitNs();
        memory.reject(id, untilNs);
        for (Prefill prefill : prefills.all()) {
            if (prefill.answeredRanks == null && !isExpected(prefill) && memory.isRejected(prefill.transfer(), nowNs)) {
                prefill.rejected = true;
                if (prefill.ended() && untilNs - prefill.grantDeadlineNs < 0) {
                    expireAt(prefill, untilNs);
                }
            }
        }
    }

    /** A decoder has a request for the transfer: its prefill waits as if no request had been rejected. */
    void asked(TransferKey transfer, long nowNs) {
        memory.forgetRejection(transfer);
        for (Prefill prefill : of(transfer).meant(transfer)) {
            if (prefill.rejected) {
                prefill.rejected = false;
                expireAt(prefill, nowNs + limits.grantWaitNs());
            }
        }
    }

    // ---- time

    /** Has the legs under an id compared after a while, if they may name different prompts. */
    void compareLater(String id, long nowNs) {
        Meeting meeting = of(id);
        if (!meeting.toCompare && meeting.looksContradictory()) {
            meeting.toCompare = true;
            setDue(meeting, nowNs + limits.contradictionWaitNs());
        }
    }

    /** Compares the legs of a meeting that is due. */
    Meeting.Contradiction compare(Meeting meeting, long nowNs) {
        meeting.toCompare = false;
        tidy(meeting);
        return meeting.contradiction(nowNs, limits.contradictionWaitNs());
    }

    private Deadlines<Due> queueOf(Due waits) {
        return due.get(waits.rank());
    }

    private void setDue(Due waits, long deadlineNs) {
        queueOf(waits).set(waits, deadlineNs);
    }

    /** Takes what is due of the first kinds; each is returned once, even if it no longer waits. Null if nothing is. */
    Due takeDue(int kinds, long nowNs) {
        Due over = null;
        for (int rank = 0; over == null && rank < kinds; rank++) {
            over = due.get(rank).takeOver(nowNs);
        }
        return over;
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    long earliestNs(long latestNs) {
        long earliest = latestNs;
        for (int rank = 0; rank < Due.KINDS; rank++) {
            earliest = due.get(rank).earliestNs(earliest);
        }
        return earliest;
    }
}
