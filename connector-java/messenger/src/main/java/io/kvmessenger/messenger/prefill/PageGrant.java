package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;

/**
 * A decoder's promise, as its prefiller holds it: these pages stay where they are until filled or confirmed cancelled.
 *
 * @param id names it in frames; in its session each is above the one before
 * @param imm of its window, for the transfer engine
 * @param contextSlot the decoder's slot for context rows, or {@link ContextSlots#NO_SLOT}
 * @param contextRequested the bits of the kinds of context rows that the decoder asks for
 * @param checksumInterval the decoder compares every n-th page of each write; 0 = none
 * @param pages the decoder's page indices by group; the first of each holds the tokens from {@link #firstTokenOf}
 */
record PageGrant(
        Session session,
        long id,
        TransferKey transfer,
        int imm,
        int promptTokens,
        int firstToken,
        List<int[]> pages,
        int contextSlot,
        int contextRequested,
        int checksumInterval,
        long receivedNs,
        long deadlineNs) {
    /** As its frame says it. */
    static PageGrant of(Session session, Grant wire, long nowNs, long waitNs) {
        return new PageGrant(
                session,
                wire.getGrantId(),
                new TransferKey(wire.getTransferId(), wire.getPromptDigest()),
                wire.getImm(),
                wire.getPromptTokens(),
                wire.getFirstToken(),
                wire.getGroupsList().stream().map(PageGrant::indices).toList(),
                wire.getContextSlot() - 1,
                wire.getContextRequested(),
                wire.getChecksumInterval(),
                nowNs,
                nowNs + waitNs);
    }

    private static int[] indices(Grant.PageList wire) {
        return wire.getPageIndicesList().stream().mapToInt(Integer::intValue).toArray();
    }

    /** What the first page of a group begins with: {@code firstToken}, or the page that the prompt's last window begins in. */
    int firstTokenOf(int group) {
        return KvPeer.of(session).geometry().groups().get(group).firstTokenSent(firstToken, promptTokens);
    }

    /**
     * Which kinds of context rows go with it.
     *
     * @throws IllegalArgumentException where it asks for one that there is not
     */
    ContextChoice context() {
        return KvPeer.of(session).contextKinds().chosen(contextRequested);
    }

    /** Pages of all groups. */
    int pageCount() {
        return pages.stream().mapToInt(group -> group.length).sum();
    }

    String transferId() {
        return transfer.id();
    }

    /** Those of the decoder's ranks that the pages are of. */
    EngineRanks ranks() {
        return KvPeer.of(session).ranks();
    }

    /** Whether a frame of this session means it. */
    boolean is(Session of, long grantId) {
        return id == grantId && session == of;
    }
}
