package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.TransferKey;

/**
 * The name of a simulated prompt: its digest contains it if engines compute digests; otherwise it is the transfer's id,
 * which is then unique. Pure.
 */
public final class PromptName {
    /** Distinguishes simulated digests from other engines'. */
    private static final String MARK = "=";

    private PromptName() {}

    /** The key of a prompt whose id may also be used by another one. */
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
