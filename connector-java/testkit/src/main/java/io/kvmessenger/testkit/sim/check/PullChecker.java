package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.wire.Ask;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.Offer;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Predicate;

/**
 * A question for a cached prefix is answered once, in time, with what the asked engine has said, and not at all once it
 * was taken back. What is offered is released soon when no grant can come any more, and is not taken from one that has
 * come. What is pulled is used once all messengers of the asking engine have it. Peers of older builds are not asked, and
 * do not answer.
 *
 * <p>Where engines have several messengers, each part of an offer waits for a grant or a decline of each messenger of the
 * asking engine; only the part of the one that was asked ends with its question.
 *
 * <p>That offered pages are released once, and hold the offered bytes until then, is checked as for any prefill.
 */
final class PullChecker implements WorldListener {
    private static final Set<OfferOutcome> OUTCOMES_OF_SOUND_PEERS =
            EnumSet.of(OfferOutcome.HELD, OfferOutcome.NOT_HELD, OfferOutcome.MISFIT, OfferOutcome.PEER_TOO_OLD);

    private static final class Question {
        final String transferId;
        final String node;
        final long dueNs;
        final boolean certain;
        /** It was taken back, or answered. */
        boolean over;

        Question(String transferId, String node, long dueNs, boolean certain) {
            this.transferId = transferId;
            this.node = node;
            this.dueNs = dueNs;
            this.certain = certain;
        }
    }

    /** A question that has reached the asked process, until it is answered or its link has ended. */
    private static final class Open {
        final String asker;
        final long linkId;
        /** It was taken back; an answer may be on its way through the messenger. */
        boolean takenBack;

        Open(String asker, long linkId) {
            this.asker = asker;
            this.linkId = linkId;
        }
    }

    private static final class Offered {
        final String transferId;
        final int heldTokens;
        /** The question that it answers; null if none was open any more. */
        final Open question;
        /** From when on no grant can come. */
        long dueNs;

        /** The processes whose grants have come in time. */
        final Set<String> grantedTo = new HashSet<>();
        /** Some came before it: another messenger of its engine was faster. */
        boolean grantedBefore;

        /** The nodes whose grant or decline it waits for. */
        final Set<String> awaited;

        Offered(String transferId, int heldTokens, Open question, Set<String> awaited, long dueNs) {
            this.transferId = transferId;
            this.heldTokens = heldTokens;
            this.question = question;
            this.awaited = awaited;
            this.dueNs = dueNs;
        }

        boolean isDeclinedLastBy(String asker) {
            return awaited.remove(asker) && awaited.isEmpty();
        }
    }

    private final Checkers.World world;
    /** By asking process and request. */
    private final Map<String, Question> questions = new LinkedHashMap<>();
    /** By asked process and transfer. */
    private final Map<String, Open> open = new HashMap<>();
    /** By offering process and request. */
    private final Map<String, Offered> offers = new LinkedHashMap<>();
    /** By node and transfer: the tokens that an answer has named. */
    private final Map<String, Integer> everOffered = new HashMap<>();
    /** By transfer: the nodes of the engine that fetches it. */
    private final Map<String, List<String>> askers = new HashMap<>();
    /** By offering process and transfer: the nodes that have declined it, and when they did first. */
    private final Map<String, Map<String, Long>> declined = new HashMap<>();
    /** By offering process and transfer: that a grant of it has come, before the offer or after it. */
    private final Set<String> granted = new HashSet<>();
    /** Fetches that have arrived, by process and request. */
    private final Set<String> arrived = new HashSet<>();

    PullChecker(Checkers.World world) {
        this.world = world;
    }

    private long nowNs() {
        return world.clock().getAsLong();
    }

    /** What is due while its process is suspended may come after that. */
    private void checkSoon(String process, String what, long dueNs) {
        long lateNs = nowNs() - Math.max(dueNs, world.resumedNs().applyAsLong(process));
        if (lateNs > BoundChecker.BOUND_NS) {
            throw violation(what + " " + lateNs / 1000 + " us after its cause");
        }
    }

    // ---- the asking engine

    @Override
    public void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {
        askers.put(transferId, decoders);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        arrived.add(process + " " + request);
    }

    @Override
    public void pullUsed(List<String> processes, String request) {
        for (String process : processes) {
            if (!arrived.contains(process + " " + request)) {
                throw violation(request + " is used, and has not arrived at " + process + " of " + processes);
            }
        }
    }

    @Override
    public void pullAsked(
            String process, String request, String transferId, String node, long limitNs, boolean certain) {
        questions.put(process + " " + request, new Question(transferId, node, nowNs() + limitNs, certain));
    }

    @Override
    public void pullDeclined(String process, String request) {
        questions.get(process + " " + request).over = true;
    }

    @Override
    public void pullOffered(String process, String request, int heldTokens, OfferOutcome outcome) {
        Question question = questions.get(process + " " + request);
        if (question == null || question.over) {
            throw violation(request + " was answered and is not asked, or was answered or taken back before");
        }
        question.over = true;
        checkSoon(process, request + " was answered", question.dueNs);
        if ((heldTokens > 0) != (outcome == OfferOutcome.HELD)) {
            throw violation(request + " was answered with " + heldTokens + " tokens and " + outcome);
        }
        if (heldTokens > 0 && !wasOffered(question, heldTokens)) {
            throw violation(request + " was answered with " + heldTokens + " tokens, which " + question.node
                    + " has not offered");
        }
        if (question.certain && !OUTCOMES_OF_SOUND_PEERS.contains(outcome)) {
            throw violation("after all faults, " + request + " was answered with " + outcome);
        }
    }

    private boolean wasOffered(Question question, int heldTokens) {
        return Objects.equals(everOffered.get(question.node + " " + question.transferId), heldTokens);
    }

    // ---- between them

    @Override
    public void askDelivered(String from, String to, long linkId, Ask ask) {
        open.put(to + " " + PromptName.of(ask.getTransferId(), ask.getPromptDigest()), new Open(from, linkId));
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if ((frame.hasAsk() || frame.hasOffer())
                && (world.ofOlderBuild().test(from) || world.ofOlderBuild().test(to))) {
            throw violation(from + " sent " + frame.getBodyCase() + " to " + to + ", and one of them knows none");
        }
        if (frame.hasOffer()) {
            checkAnswer(from, to, frame.getOffer());
        } else if (frame.hasCannotDeliver()) {
            checkKept(from, to, frame.getCannotDeliver());
        }
    }

    private void checkAnswer(String from, String to, Offer offer) {
        String transferId = PromptName.of(offer.getTransferId(), offer.getPromptDigest());
        Open answered = open.remove(from + " " + transferId);
        if (answered == null || !answered.asker.equals(to)) {
            throw violation(from + " answers " + to + " about " + transferId + " unasked, or twice");
        }
        if (offer.getHeldTokens() > 0) {
            everOffered.put(BoundChecker.nodeOf(from) + " " + transferId, offer.getHeldTokens());
        }
    }

    private void checkKept(String from, String to, CannotDeliver answer) {
        String transferId = PromptName.of(answer.getTransferId(), answer.getPromptDigest());
        boolean grantedInTime = offers.entrySet().stream()
                .anyMatch(e -> e.getKey().startsWith(from + " ")
                        && e.getValue().transferId.equals(transferId)
                        && e.getValue().grantedTo.contains(to));
        if (grantedInTime && answer.getReason() == Reason.EXPIRED) {
            throw violation(from + " has taken " + transferId + " back, which was granted");
        }
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            String transferId = PromptName.of(grant.getTransferId(), grant.getPromptDigest());
            granted.add(to + " " + transferId);
            offers.forEach((key, offer) -> {
                boolean fits = offer.transferId.equals(transferId) && offer.heldTokens == grant.getPromptTokens();
                if (fits && key.startsWith(to + " ") && nowNs() < offer.dueNs) {
                    offer.grantedTo.add(from);
                }
            });
        } else if (frame.hasDecline()) {
            String transferId = PromptName.of(
                    frame.getDecline().getTransferId(), frame.getDecline().getPromptDigest());
            String asker = BoundChecker.nodeOf(from);
            Open question = open.get(to + " " + transferId);
            if (question != null) {
                question.takenBack = true;
            }
            declined.computeIfAbsent(to + " " + transferId, key -> new HashMap<>())
                    .putIfAbsent(asker, nowNs());
            due(
                    to,
                    offer -> offer.transferId.equals(transferId)
                            && offer.isDeclinedLastBy(asker)
                            && !mayLoseDeclines(offer));
        }
    }

    /** Its link may end by a throwing port before the decline is handled; that of the question ends the offer too. */
    private boolean mayLoseDeclines(Offered offer) {
        boolean asked = offer.question != null && askers.get(offer.transferId).size() == 1;
        return world.portsThrow() && !asked;
    }

    @Override
    public void linkEnded(String process, long linkId) {
        open.entrySet().removeIf(e -> e.getKey().startsWith(process + " ") && e.getValue().linkId == linkId);
        due(process, offer -> offer.question != null && offer.question.linkId == linkId);
    }

    private void due(String process, Predicate<Offered> chosen) {
        offers.forEach((key, offer) -> {
            if (key.startsWith(process + " ") && chosen.test(offer)) {
                offer.dueNs = Math.min(offer.dueNs, nowNs());
            }
        });
    }

    // ---- the asked engine

    @Override
    public void offerMade(String process, String request, String transferId, int heldTokens, boolean answers) {
        Open question = open.get(process + " " + transferId);
        boolean isOpen = question != null && !question.takenBack;
        Set<String> awaited = new HashSet<>(askers.getOrDefault(transferId, List.of()));
        awaited.removeAll(rememberedDeclines(process, transferId));
        boolean waits = answers ? isOpen : !isOpen && !awaited.isEmpty();
        long dueNs = nowNs() + (waits ? world.limits().offerLimitNs() : 0);
        Offered offer = new Offered(transferId, heldTokens, answers ? question : null, awaited, dueNs);
        offer.grantedBefore = !answers && granted.contains(process + " " + transferId);
        offers.put(process + " " + request, offer);
    }

    /** A messenger forgets declines of what it does not know, after a time, or when there are many. */
    private Set<String> rememberedDeclines(String process, String transferId) {
        Map<String, Long> declines = declined.getOrDefault(process + " " + transferId, Map.of());
        boolean manyKept = world.limits().capacities().endedTransfersMax() >= Capacities.PRODUCTION.endedTransfersMax();
        boolean recent = declines.values().stream()
                .allMatch(atNs -> nowNs() - atNs < world.limits().grantWaitNs());
        return manyKept && recent ? declines.keySet() : Set.of();
    }

    @Override
    public void offerWithdrawn(String process, String request) {
        Offered offer = offers.get(process + " " + request);
        if (offer != null) {
            offer.dueNs = Math.min(offer.dueNs, nowNs());
        }
    }

    @Override
    public void prefillReleased(String process, String request) {
        Offered offer = offers.remove(process + " " + request);
        if (offer != null && offer.grantedTo.isEmpty() && !offer.grantedBefore) {
            checkSoon(process, "the offer " + request + " was released", offer.dueNs);
        }
    }

    @Override
    public void processDied(String process) {
        questions.keySet().removeIf(key -> key.startsWith(process + " "));
        open.keySet().removeIf(key -> key.startsWith(process + " "));
        offers.keySet().removeIf(key -> key.startsWith(process + " "));
    }

    @Override
    public void worldAtRest() {
        questions.forEach((key, question) -> {
            if (!question.over) {
                throw violation(key + " was never answered");
            }
        });
        if (!offers.isEmpty()) {
            throw violation("at rest still offered: " + offers.keySet());
        }
    }

    private static Violation violation(String sentence) {
        return new Violation("Pull", sentence);
    }
}
