package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.EngineCommand;
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
 * <p>Pure. The description of a subject is not inspected: its {@link Subject} does that.
 */
public final class FrameRules {
    static final int ENGINE_ID_LENGTH_MAX = 256;
    static final int TRANSFER_ID_LENGTH_MAX = 512;
    static final int TRANSPORTS_MAX = 8;
    static final int TRANSPORT_NAME_LENGTH_MAX = 32;
    static final int LOCATION_LENGTH_MAX = 256;
    static final int CONTEXT_ROWS_MAX = 16;
    static final int CONTEXT_NAME_LENGTH_MAX = 64;
    static final int PROOF_LENGTH_MAX_BYTES = 64;
    static final int SUBJECT_KIND_LENGTH_MAX = 32;
    static final int PROMPT_DIGEST_LENGTH_MAX = 128;
    static final int CACHE_SALT_LENGTH_MAX = 1024;

    private FrameRules() {}

    /** The rule that the frame breaks, as the end of a sentence; empty when it breaks none. */
    static String broken(ControlFrame frame) {
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
            case ATTACH -> attach(frame.getAttach());
            case GRANT ->
                firstOf(
                        transfer(
                                frame.getGrant().getTransferId(),
                                frame.getGrant().getPromptDigest()),
                        grantId(frame.getGrant().getGrantId()),
                        cacheSalt(frame.getGrant().getPrompt().getCacheSalt()));
            case CANNOT_DELIVER ->
                firstOf(
                        transfer(
                                frame.getCannotDeliver().getTransferId(),
                                frame.getCannotDeliver().getPromptDigest()),
                        grantId(frame.getCannotDeliver().getGrantId()));
            case CHECKSUMS -> grantId(frame.getChecksums().getGrantId());
            case CANCEL ->
                firstOf(
                        transfer(
                                frame.getCancel().getTransferId(),
                                frame.getCancel().getPromptDigest()),
                        grantId(frame.getCancel().getGrantId()));
            case CANCEL_CONFIRMED -> grantId(frame.getCancelConfirmed().getGrantId());
            case DECLINE ->
                firstOf(
                        transfer(
                                frame.getDecline().getTransferId(),
                                frame.getDecline().getPromptDigest()),
                        cacheSalt(frame.getDecline().getPrompt().getCacheSalt()));
            case EXPECT ->
                transfer(frame.getExpect().getTransferId(), frame.getExpect().getPromptDigest());
            case PREFILLED ->
                transfer(
                        frame.getPrefilled().getTransferId(),
                        frame.getPrefilled().getPromptDigest());
            case REJECTED -> transferId(frame.getRejected().getTransferId());
            case REFUSAL, HEARTBEAT, GOODBYE, BODY_NOT_SET -> ""; // sentences are cut where they are shown: PeerText
        };
    }

    private static String greeting(Challenge challenge) {
        return greeting(
                ProtocolVersions.said(challenge.getProtocolVersion(), challenge.getNewestVersion()),
                challenge.getEngineId(),
                challenge.getNonce().size());
    }

    private static String greeting(Hello hello) {
        return greeting(
                ProtocolVersions.said(hello.getProtocolVersion(), hello.getNewestVersion()),
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

    private static String attach(Attach attach) {
        if (attach.getAdmissionKey().size() != Admission.KEY_LENGTH_BYTES) {
            return "an admission_key of " + attach.getAdmissionKey().size() + " bytes, expected "
                    + Admission.KEY_LENGTH_BYTES;
        }
        if (attach.getTransportsCount() > TRANSPORTS_MAX) {
            return attach.getTransportsCount() + " transports, expected at most " + TRANSPORTS_MAX;
        }
        if (attach.getContextCount() > CONTEXT_ROWS_MAX) {
            return attach.getContextCount() + " context rows, expected at most " + CONTEXT_ROWS_MAX;
        }
        String broken = "";
        for (Attach.ContextRow row : attach.getContextList()) {
            broken = firstOf(broken, text("context row name", row.getName(), CONTEXT_NAME_LENGTH_MAX));
        }
        for (TransportAddress address : attach.getTransportsList()) {
            broken = firstOf(broken, text("transport", address.getTransport(), TRANSPORT_NAME_LENGTH_MAX));
            broken = firstOf(broken, text("location", address.getLocation(), LOCATION_LENGTH_MAX));
        }
        return broken;
    }

    /** The rule that the engine's own fetch breaks, for which a peer would end the link. Empty when it breaks none. */
    public static String broken(EngineCommand.Fetch ask) {
        return firstOf(
                transfer(ask.transferId(), ask.promptDigest()),
                cacheSalt(ask.prompt().cacheSalt()));
    }

    private static String transfer(String id, String promptDigest) {
        return firstOf(transferId(id), text("prompt_digest", promptDigest, PROMPT_DIGEST_LENGTH_MAX));
    }

    static String transferId(String id) {
        return id.isEmpty() ? "an empty transfer_id" : text("transfer_id", id, TRANSFER_ID_LENGTH_MAX);
    }

    private static String grantId(long id) {
        return id < 1 ? "a grant_id of " + id + ", expected at least 1" : "";
    }

    private static String cacheSalt(String salt) {
        return text("cache_salt", salt, CACHE_SALT_LENGTH_MAX);
    }

    private static String text(String field, String value, int lengthMax) {
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

    private static String firstOf(String... broken) {
        for (String rule : broken) {
            if (!rule.isEmpty()) {
                return rule;
            }
        }
        return "";
    }
}
