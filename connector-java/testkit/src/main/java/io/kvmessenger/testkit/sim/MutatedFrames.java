package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Grant;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** Control frames as received by a messenger with the bug of a {@link Mutation}. */
final class MutatedFrames {
    private final Mutation mutation;
    /** By process and id: digest of the first prompt that was granted. */
    private final Map<String, String> servedDigests = new HashMap<>();

    /** Processes with the ids that they have granted; and with the grants of one that were not its first. */
    private final Set<String> granted = new HashSet<>();

    private final Set<String> grantedAgain = new HashSet<>();

    /** The kinds of context rows that go on request. */
    private final int onRequestBits;

    private final AnswersByImmediate answers = new AnswersByImmediate();

    /** By process: what has a bug in how it takes answers to questions for cached prefixes. */
    private final Map<String, MutatedOffers> offers = new HashMap<>();

    /** @param traffic determines the kinds of context rows */
    MutatedFrames(Mutation mutation, Traffic traffic) {
        this.mutation = mutation;
        this.onRequestBits = (1 << traffic.contextOnRequest()) - 1;
    }

    void offersAt(String process, MutatedOffers mutated) {
        offers.put(process, mutated);
    }

    /** The frame as the process sends it. */
    ControlFrame sent(String process, ControlFrame frame) {
        answers.sent(process, frame);
        if (frame.hasGrant() && !granted.add(process + " " + frame.getGrant().getTransferId())) {
            grantedAgain.add(process + " " + frame.getGrant().getGrantId());
        }
        return mutation == Mutation.CHECKSUM_OF_ANOTHER && frame.hasChecksums() ? withoutOther(frame) : frame;
    }

    private static String grantOf(String process, ControlFrame frame) {
        return process + " " + frame.getChecksums().getGrantId();
    }

    /** The first write's checksum counts for the last as well. */
    private static ControlFrame withoutLast(ControlFrame frame) {
        Checksums.Builder checksums = frame.getChecksums().toBuilder();
        int last = checksums.getWritesCount() - 1;
        if (last > 0) {
            int weight = checksums.getWrites(last).getWeight();
            checksums.removeWrites(last);
            checksums.getWritesBuilder(0).setWeight(checksums.getWrites(0).getWeight() + weight);
        }
        return frame.toBuilder().setChecksums(checksums).build();
    }

    private static ControlFrame withoutOther(ControlFrame frame) {
        Checksums.Builder checksums = frame.getChecksums().toBuilder();
        for (int i = 1; i < checksums.getWritesCount(); i++) {
            if (checksums.getWrites(i).getWeight() == checksums.getWrites(0).getWeight()) {
                checksums.setWrites(i, checksums.getWrites(0));
                return frame.toBuilder().setChecksums(checksums).build();
            }
        }
        return frame;
    }

    /** The frame as the process misreads it; null when it ignores the frame. */
    ControlFrame heard(String process, ControlFrame frame) {
        return switch (mutation) {
            case DIGEST_IGNORED -> frame.hasGrant() && !frame.getGrant().hasPrompt() ? withoutDigest(frame) : frame;
            case ID_SERVED_ONCE -> frame.hasGrant() && !first(process, frame.getGrant()) ? null : frame;
            case REJECTION_ENDS_TRANSFER -> frame.hasRejected() ? declining(frame) : frame;
            case REJECTION_LOST -> frame.hasRejected() ? null : frame;
            case EXPECTATION_LOST -> frame.hasExpect() ? null : frame;
            case SHARES_NOT_HEARD -> frame.hasShares() ? null : frame;
            case REQUESTED_ROW_LEFT_OUT -> asking(frame, 0);
            case UNREQUESTED_ROW_SENT -> asking(frame, onRequestBits);
            case COMPARISON_LEFT_OUT -> frame.hasChecksums() ? withoutLast(frame) : frame;
            case COMPARISON_LEFT_OUT_AGAIN ->
                frame.hasChecksums() && grantedAgain.contains(grantOf(process, frame)) ? withoutLast(frame) : frame;
            case LEAVES_WHEN_BUSY -> frame.getHeartbeat().hasLeaveAfterFrames() ? ending() : frame;
            case ANSWERED_BY_IMMEDIATE -> answers.delivered(process, frame);
            case LATE_OFFER_ACCEPTED -> {
                if (frame.hasOffer()) {
                    offers.get(process).onOffer(frame.getOffer());
                }
                yield frame;
            }
            default -> frame;
        };
    }

    private static ControlFrame ending() {
        return ControlFrame.newBuilder()
                .setGoodbye(Goodbye.newBuilder().setIdle(true))
                .build();
    }

    private static ControlFrame withoutDigest(ControlFrame frame) {
        return frame.toBuilder()
                .setGrant(frame.getGrant().toBuilder().clearPromptDigest())
                .build();
    }

    private static ControlFrame asking(ControlFrame frame, int requestedBits) {
        return !frame.hasGrant() || frame.getGrant().getContextSlot() == 0
                ? frame
                : frame.toBuilder()
                        .setGrant(frame.getGrant().toBuilder().setContextRequested(requestedBits))
                        .build();
    }

    private boolean first(String process, Grant grant) {
        String digest = grant.getPromptDigest();
        String before = servedDigests.putIfAbsent(process + " " + grant.getTransferId(), digest);
        return before == null || before.equals(digest);
    }

    private static ControlFrame declining(ControlFrame frame) {
        return ControlFrame.newBuilder()
                .setDecline(
                        Decline.newBuilder().setTransferId(frame.getRejected().getTransferId()))
                .build();
    }
}
