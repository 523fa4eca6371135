package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import java.util.Map;

/**
 * Transfer ids of requests that their decoder rejected recently, whose prefill leg may still be on its way. Their
 * prompts are unknown. For a list of prompts, the id of the first one is named; the others append {@code #} and their
 * index.
 *
 * <p>Owned by the messenger's thread.
 */
final class Rejections {
    private static final char PLACE = '#';

    private final Map<String, Long> untilNs;
    private final long memoryNs;

    Rejections(long memoryNs, int entriesMax) {
        untilNs = new BoundedMap<>(entriesMax);
        this.memoryNs = memoryNs;
    }

    void add(String transferId, long nowNs) {
        untilNs.put(transferId, nowNs + memoryNs);
    }

    /** Removes a rejection, since a request for the transfer exists. */
    void remove(TransferKey transfer) {
        untilNs.remove(transfer.id());
        untilNs.remove(firstOfList(transfer.id()));
    }

    boolean names(TransferKey transfer, long nowNs) {
        return isRecent(transfer.id(), nowNs) || isRecent(firstOfList(transfer.id()), nowNs);
    }

    private boolean isRecent(String transferId, long nowNs) {
        Long until = untilNs.get(transferId);
        return until != null && nowNs - until < 0;
    }

    private static String firstOfList(String transferId) {
        int place = transferId.lastIndexOf(PLACE);
        return place > 0 ? transferId.substring(0, place) : transferId;
    }
}
