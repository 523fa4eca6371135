package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A decoder's promise, as its prefiller holds it: these pages stay where they are until filled or confirmed cancelled.
 *
 * @param id names the grant in frames; within a session ids increase
 * @param imm of its window, for the transfer engine
 * @param contextSlot the decoder's slot for context rows, or {@link ContextSlots#NO_SLOT}
 * @param contextRequested the bits of the kinds of context rows that the decoder requests
 * @param checksumInterval the decoder compares every n-th page of each write; 0 = none
 * @param pages the decoder's page indices by group; the first of each holds the tokens from {@link #firstTokenOf}
 * @param unheardLimitNs the least that the decoder wants it to wait for a prompt that is unheard of; 0 = nothing said
 */
record PageGrant(
        DecoderSession session,
        long id,
        TransferKey transfer,
        int imm,
        int promptTokens,
        int firstToken,
        List<int[]> pages,
        int contextSlot,
        int contextRequested,
        int checksumInterval,
        long unheardLimitNs,
        long receivedNs)
        implements Due {
    /** Decodes a grant's frame. */
    static PageGrant of(DecoderSession session, Grant wire, long nowNs) {
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
                Math.min(unheardLimitNs(wire), ProtocolLimits.UNHEARD_LIMIT_MAX_NS),
                nowNs);
    }

    private static long unheardLimitNs(Grant wire) {
        return TimeUnit.MILLISECONDS.toNanos(Integer.toUnsignedLong(wire.getUnheardLimitMillis()));
    }

    private static int[] indices(Grant.PageList wire) {
        return wire.getPageIndicesList().stream().mapToInt(Integer::intValue).toArray();
    }

    /** First token of a group's first page: {@code firstToken}, or the start of the last window's first page. */
    int firstTokenOf(int group) {
        return session.peerCache().geometry().groups().get(group).firstTokenSent(firstToken, promptTokens);
    }

    /**
     * The kinds of context rows to send with it; none where it names no slot, as a grant of what was offered may.
     *
     * @throws IllegalArgumentException if it requests a kind that does not exist
     */
    ContextChoice context() {
        return contextSlot == ContextSlots.NO_SLOT ? ContextChoice.NONE : contextAsked();
    }

    /**
     * The kinds of context rows that a computed prompt would bring with it.
     *
     * @throws IllegalArgumentException if it requests a kind that does not exist
     */
    ContextChoice contextAsked() {
        return session.peerCache().contextKinds().chosen(contextRequested);
    }

    /** Number of pages of all groups. */
    int pageCount() {
        return pages.stream().mapToInt(group -> group.length).sum();
    }

    /** Bytes of its page lists. */
    long bytes() {
        return (long) pageCount() * Integer.BYTES;
    }

    String transferId() {
        return transfer.id();
    }

    /** The decoder's ranks that the pages belong to. */
    EngineRanks ranks() {
        return session.peerCache().ranks();
    }

    /** Whether a frame of this session refers to it. */
    boolean is(DecoderSession of, long grantId) {
        return id == grantId && session == of;
    }
}
