package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Heartbeat;
import io.kvmessenger.messenger.wire.Refusal;

/** The frames of a link itself, after its handshake or in place of it. Pure, but for the count of heartbeats. */
final class LinkFrames {
    private LinkFrames() {}

    /** Whether a frame of this kind is of the link or of its handshake, and not of what is moved. */
    static boolean isOfLink(ControlFrame.BodyCase kind) {
        return switch (kind) {
            case CHALLENGE, HELLO, WELCOME, ATTACH, REFUSAL, HEARTBEAT, GOODBYE, BODY_NOT_SET -> true;
            default -> false;
        };
    }

    static ControlFrame.Builder heartbeat(Session session) {
        return ControlFrame.newBuilder().setHeartbeat(Heartbeat.newBuilder().setSequence(++session.heartbeatsSent));
    }

    /** Asks the dialler to leave if it has sent nothing beyond what was handled. */
    static ControlFrame.Builder askingToLeave(Session session) {
        ControlFrame.Builder frame = heartbeat(session);
        frame.getHeartbeatBuilder().setLeaveAfterFrames(session.framesHandled);
        return frame;
    }

    static ControlFrame.Builder goodbye(String sentence) {
        return ControlFrame.newBuilder().setGoodbye(Goodbye.newBuilder().setSentence(PeerText.oneLine(sentence)));
    }

    /** The dialler leaves as it was asked to. */
    static ControlFrame.Builder goodbyeOfIdle(String sentence) {
        ControlFrame.Builder frame = goodbye(sentence);
        frame.getGoodbyeBuilder().setIdle(true);
        return frame;
    }

    static ControlFrame.Builder refusal(String field, String sentence) {
        return ControlFrame.newBuilder()
                .setRefusal(Refusal.newBuilder().setField(field).setSentence(sentence));
    }
}
