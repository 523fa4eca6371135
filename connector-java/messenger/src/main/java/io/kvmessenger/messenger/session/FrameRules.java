package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.ProtocolVersions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.Challenge;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import io.kvmessenger.messenger.wire.TransportAddress;
import io.kvmessenger.transfer.Admission;

/**
 * Rules for a frame that hold independent of its context: its strings and keys are limited in length, and strings are
 * one line. The frame's handler checks its meaning.
 *
 * <p>Pure. Frames and descriptions of a subject are not inspected: its {@link Subject} does that.
 */
public final class FrameRules {
    static final int ENGINE_ID_LENGTH_MAX = 256;
    static final int PROOF_LENGTH_MAX_BYTES = 64;
    static final int SUBJECT_KIND_LENGTH_MAX = 32;
    static final int TRANSPORTS_MAX = 8;
    static final int TRANSPORT_NAME_LENGTH_MAX = 32;
    static final int LOCATION_LENGTH_MAX = 256;

    private FrameRules() {}

    /** The rule that the frame breaks, as the end of a sentence; empty when it breaks none. */
    static String broken(ControlFrame frame, Subject subject) {
        return switch (frame.getBodyCase()) {
            case CHALLENGE -> greeting(frame.getChallenge());
            case HELLO ->
                firstOf(
                        greeting(frame.getHello()),
                        proof(frame.getHello().getProof().size()),
                        subject(frame.getHello().getSubject()));
            case WELCOME ->
                firstOf(
                        proof(frame.getWelcome().getProof().size()),
                        subject(frame.getWelcome().getSubject()));
            case REFUSAL, HEARTBEAT, GOODBYE, BODY_NOT_SET -> ""; // sentences are cut where they are shown: PeerText
            default -> subject.broken(frame);
        };
    }

    private static String greeting(Challenge challenge) {
        return greeting(
                ProtocolVersions.given(challenge.getProtocolVersion(), challenge.getNewestVersion()),
                challenge.getEngineId(),
                challenge.getNonce().size());
    }

    private static String greeting(Hello hello) {
        return greeting(
                ProtocolVersions.given(hello.getProtocolVersion(), hello.getNewestVersion()),
                hello.getEngineId(),
                hello.getNonce().size());
    }

    /** If the peer's versions are all unknown here, only the fields that a refusal needs are checked. */
    private static String greeting(ProtocolVersions versions, String engineId, int nonceBytes) {
        String id = text("engine_id", engineId, ENGINE_ID_LENGTH_MAX);
        return id.isEmpty()
                        && versions.agreedWith(ProtocolVersions.OURS) != ProtocolVersions.NONE
                        && nonceBytes != HandshakeProof.NONCE_LENGTH_BYTES
                ? "a nonce of " + nonceBytes + " bytes, expected " + HandshakeProof.NONCE_LENGTH_BYTES
                : id;
    }

    private static String proof(int lengthBytes) {
        return lengthBytes > PROOF_LENGTH_MAX_BYTES
                ? "a proof of " + lengthBytes + " bytes, expected at most " + PROOF_LENGTH_MAX_BYTES
                : "";
    }

    private static String subject(SubjectDescription subject) {
        return text("subject_kind", subject.getSubjectKind(), SUBJECT_KIND_LENGTH_MAX);
    }

    /** The rule that an address to write to breaks, or the key of its admission; the rest is its subject's. */
    public static String attach(Attach attach) {
        if (attach.getAdmissionKey().size() != Admission.KEY_LENGTH_BYTES) {
            return "an admission_key of " + attach.getAdmissionKey().size() + " bytes, expected "
                    + Admission.KEY_LENGTH_BYTES;
        }
        if (attach.getTransportsCount() > TRANSPORTS_MAX) {
            return attach.getTransportsCount() + " transports, expected at most " + TRANSPORTS_MAX;
        }
        String broken = "";
        for (TransportAddress address : attach.getTransportsList()) {
            broken = firstOf(broken, text("transport", address.getTransport(), TRANSPORT_NAME_LENGTH_MAX));
            broken = firstOf(broken, text("location", address.getLocation(), LOCATION_LENGTH_MAX));
        }
        return broken;
    }

    /** The rule that a text breaks; empty when it breaks none. */
    public static String text(String field, String value, int lengthMax) {
        if (value.length() > lengthMax) {
            return "a " + field + " of " + value.length() + " characters, expected at most " + lengthMax;
        }
        return hasControlCharacters(value) ? "control characters in its " + field + ", expected one line of text" : "";
    }

    /** A plain loop over all characters: a stream would take most of the messenger's time for small frames. */
    private static boolean hasControlCharacters(String value) {
        for (int i = 0; i < value.length(); i++) {
            if (Character.isISOControl(value.charAt(i))) {
                return true;
            }
        }
        return false;
    }

    /** The first rule that is broken; empty when none is. */
    public static String firstOf(String... broken) {
        for (String rule : broken) {
            if (!rule.isEmpty()) {
                return rule;
            }
        }
        return "";
    }
}
