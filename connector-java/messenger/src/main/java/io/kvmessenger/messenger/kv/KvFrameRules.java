package io.kvmessenger.messenger.kv;

import static io.kvmessenger.messenger.session.FrameRules.firstOf;
import static io.kvmessenger.messenger.session.FrameRules.text;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.session.FrameRules;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;

/**
 * Rules for the frames of a KV cache that hold independent of their context: lengths of texts and keys, one line of
 * text, ids. Pure. The frame's handler checks its meaning.
 */
public final class KvFrameRules {
    public static final int TRANSFER_ID_LENGTH_MAX = 512;
    public static final int CONTEXT_ROWS_MAX = 16;
    static final int CONTEXT_NAME_LENGTH_MAX = 64;
    static final int PROMPT_DIGEST_LENGTH_MAX = 128;
    static final int CACHE_SALT_LENGTH_MAX = 1024;

    private KvFrameRules() {}

    /** The rule that the frame breaks, as the end of a sentence; empty when it breaks none. */
    public static String broken(ControlFrame frame) {
        return switch (frame.getBodyCase()) {
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
            case SHARES -> grantId(frame.getShares().getGrantId());
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
            case ASK ->
                firstOf(
                        transfer(frame.getAsk().getTransferId(), frame.getAsk().getPromptDigest()),
                        cacheSalt(frame.getAsk().getPrompt().getCacheSalt()));
            case OFFER ->
                transfer(frame.getOffer().getTransferId(), frame.getOffer().getPromptDigest());
            case REJECTED -> transferId(frame.getRejected().getTransferId());
            default -> ""; // a frame of the link, or of another subject
        };
    }

    private static String attach(Attach attach) {
        if (attach.getContextCount() > CONTEXT_ROWS_MAX) {
            return attach.getContextCount() + " context rows, expected at most " + CONTEXT_ROWS_MAX;
        }
        String broken = FrameRules.attach(attach);
        for (Attach.ContextRow row : attach.getContextList()) {
            broken = firstOf(broken, text("context row name", row.getName(), CONTEXT_NAME_LENGTH_MAX));
        }
        return broken;
    }

    /** The rule that the engine's own fetch breaks, for which a peer would end the link. Empty when it breaks none. */
    public static String broken(EngineCommand.Fetch ask) {
        return firstOf(
                transfer(ask.transferId(), ask.promptDigest()),
                cacheSalt(ask.prompt().cacheSalt()));
    }

    /** The same of the engine's own question. */
    public static String broken(EngineCommand.Ask ask) {
        return firstOf(
                transfer(ask.transfer().id(), ask.transfer().digest()),
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
}
