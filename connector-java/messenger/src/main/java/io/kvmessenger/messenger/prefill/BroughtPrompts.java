package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.BoundedMap;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Prompts sent by decoders that the engine has been asked to compute. Each messenger of a decoder's engine sends the
 * prompt of each request; the engine gets it once per request. Owned by the messenger's thread.
 */
final class BroughtPrompts {
    /** Limit on concurrent requests of one prompt under one id; the engine is not asked to compute further ones. */
    private static final int SAME_MAX = 1024;

    /** For each request that the engine was asked to compute, the ranks whose messengers have sent its prompt. */
    private final Map<TransferKey, List<EngineRanks>> byTransfer;

    BroughtPrompts(int entriesMax) {
        byTransfer = new BoundedMap<>(entriesMax);
    }

    /**
     * Records a prompt sent by the messenger of some ranks. Returns whether it is the first of a request.
     *
     * @param severalAllowed whether a prompt sent again by the same ranks is another request
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

    /** Removes one request for that prompt, which has ended or will not come; sent again, it is a new request. */
    void removeOne(TransferKey transfer) {
        List<EngineRanks> requests = byTransfer.get(transfer);
        if (requests != null) {
            requests.removeFirst();
            if (requests.isEmpty()) {
                byTransfer.remove(transfer);
            }
        }
    }

    /** Whether the engine has been asked to compute the prompt. */
    boolean knows(TransferKey transfer) {
        return byTransfer.containsKey(transfer);
    }

    void removeAll(TransferKey transfer) {
        byTransfer.remove(transfer);
    }
}
