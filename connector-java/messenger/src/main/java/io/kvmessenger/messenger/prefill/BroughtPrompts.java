package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Which prompts decoders have brought that the engine has been asked to compute. Each of a decoder's messengers brings the
 * prompt of each of its requests; the engine gets it once for each request. Owned by the messenger's thread.
 */
final class BroughtPrompts {
    /** Requests of one prompt under one id that are computed at once; what goes beyond waits in vain. */
    private static final int SAME_MAX = 1024;

    /** For each request that has been asked for, the ranks whose messengers have brought it. */
    private final Map<TransferKey, List<EngineRanks>> byTransfer = new BoundedMap<>(ProtocolLimits.ENDED_TRANSFERS_MAX);

    /**
     * Notes that the messenger of some ranks brings a prompt. Returns whether it is the first of a request.
     *
     * @param severalAllowed whether what the same ranks bring again is another request of that prompt
     */
    boolean add(TransferKey transfer, EngineRanks ranks, boolean severalAllowed) {
        List<EngineRanks> requests = byTransfer.computeIfAbsent(transfer, unknown -> new ArrayList<>(1));
        for (EngineRanks bringers : requests) {
            if (!severalAllowed) {
                return false;
            }
            if (bringers.fits(ranks) && !bringers.intersects(ranks)) {
                bringers.add(ranks);
                return false;
            }
        }
        if (requests.size() >= SAME_MAX) {
            return false;
        }
        requests.add(EngineRanks.copyOf(ranks));
        return true;
    }

    /** A request of that prompt is over, or will not come: one that is brought from now on is another. */
    void removeOne(TransferKey transfer) {
        List<EngineRanks> requests = byTransfer.get(transfer);
        if (requests != null) {
            requests.removeFirst();
            if (requests.isEmpty()) {
                byTransfer.remove(transfer);
            }
        }
    }

    void removeAll(TransferKey transfer) {
        byTransfer.remove(transfer);
    }
}
