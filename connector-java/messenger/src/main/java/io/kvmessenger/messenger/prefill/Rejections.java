package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import java.util.Map;

/**
 * Transfer ids of requests that their decoder rejected a moment ago: the prefill leg of one may still be on its way. Which
 * prompts they had is not known. The prompts of a list are named after the first, with {@code #} and their place behind.
 *
 * <p>Owned by the messenger's thread.
 */
final class Rejections {
    private static final char PLACE = '#';

    private final Map<String, Long> untilNs = new BoundedMap<>(ProtocolLimits.ENDED_TRANSFERS_MAX);
    private final long memoryNs;

    Rejections(long memoryNs) {
        this.memoryNs = memoryNs;
    }

    void add(String transferId, long nowNs) {
        untilNs.put(transferId, nowNs + memoryNs);
    }

    /** A request for it is there after all. */
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
