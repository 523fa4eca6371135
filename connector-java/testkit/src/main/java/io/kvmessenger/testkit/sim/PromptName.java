package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.TransferKey;

/**
 * What a simulated prompt is called: its digest says that where engines make digests, else the id of its transfer, which is
 * then its own. Pure.
 */
public final class PromptName {
    /** The digests of other engines begin with something else. */
    private static final String MARK = "=";

    private PromptName() {}

    /** How the prompt is known where its id may be another's too. */
    static TransferKey key(String transferId, String name) {
        return new TransferKey(transferId, MARK + name);
    }

    public static String of(TransferKey transfer) {
        return of(transfer.id(), transfer.digest());
    }

    public static String of(String transferId, String promptDigest) {
        return promptDigest.startsWith(MARK) ? promptDigest.substring(MARK.length()) : transferId;
    }
}
