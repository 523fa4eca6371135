package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.messenger.session.FrameRules;
import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.SubjectFrame;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.weights.wire.Announce;
import io.kvmessenger.weights.wire.LandingTarget;
import io.kvmessenger.weights.wire.Refused;
import io.kvmessenger.weights.wire.WeightsFrame;

/** The frames of weights, to and from the control link's, and the rules for their fields. Pure. */
final class WeightsFrames {
    static final int TICKET_LENGTH_MAX = 64;

    private WeightsFrames() {}

    static ControlFrame.Builder encode(WeightsFrame.Builder frame) {
        return ControlFrame.newBuilder()
                .setSubject(SubjectFrame.newBuilder().setPayload(frame.build().toByteString()));
    }

    static ControlFrame.Builder refused(long updateId, String sentence) {
        return encode(WeightsFrame.newBuilder()
                .setRefused(Refused.newBuilder().setUpdateId(updateId).setSentence(PeerText.oneLine(sentence))));
    }

    /** A frame that {@link #broken} found nothing wrong with. */
    static WeightsFrame decode(ControlFrame frame) {
        try {
            return WeightsFrame.parseFrom(frame.getSubject().getPayload());
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("no frame of weights", e);
        }
    }

    static ByteString target(String ticket, String refusal, RegionDescriptor landing) {
        return LandingTarget.newBuilder()
                .setTicket(ticket)
                .setRefusal(refusal)
                .setRegionId(landing.regionId())
                .setLengthBytes(landing.lengthBytes())
                .setRegionVersion(landing.version())
                .setShareable(landing.shareable())
                .build()
                .toByteString();
    }

    static LandingTarget target(Attach attach) {
        try {
            return LandingTarget.parseFrom(attach.getSubject());
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("no target of weights", e);
        }
    }

    static RegionDescriptor region(LandingTarget target) {
        return new RegionDescriptor(
                target.getRegionId(), target.getLengthBytes(), target.getRegionVersion(), target.getShareable());
    }

    /** The rule that a frame breaks; empty when it breaks none. */
    static String broken(ControlFrame frame) {
        try {
            return switch (frame.getBodyCase()) {
                case ATTACH -> broken(frame.getAttach());
                case SUBJECT -> broken(decode(frame));
                default -> "";
            };
        } catch (IllegalArgumentException unreadable) {
            return unreadable.getMessage();
        }
    }

    private static String broken(Attach attach) {
        LandingTarget target = target(attach);
        return FrameRules.firstOf(
                FrameRules.attach(attach),
                FrameRules.text("ticket", target.getTicket(), TICKET_LENGTH_MAX),
                target.getLengthBytes() < 1 ? "a landing of " + target.getLengthBytes() + " bytes" : "");
    }

    private static String broken(WeightsFrame frame) {
        return switch (frame.getBodyCase()) {
            case ANNOUNCE -> broken(frame.getAnnounce());
            case REFUSED ->
                frame.getRefused().getSentence().length() > PeerText.SENTENCE_LENGTH_MAX ? "a longer sentence" : "";
            case ABANDON ->
                frame.getAbandon().getPostedCount() < 0
                        ? "posted_count " + frame.getAbandon().getPostedCount()
                        : "";
            case GROUND, LANDED, APPLIED -> "";
            case BODY_NOT_SET -> "no body of this version";
        };
    }

    private static String broken(Announce announce) {
        if (announce.getVersion() < 1 || announce.getWriteCount() < 1) {
            return "version " + announce.getVersion() + " in " + announce.getWriteCount() + " writes";
        }
        return announce.getContentDigest().size() == ContentDigest.LENGTH_BYTES
                ? ""
                : "a digest of " + announce.getContentDigest().size() + " bytes";
    }
}
