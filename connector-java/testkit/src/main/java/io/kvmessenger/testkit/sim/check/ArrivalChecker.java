package io.kvmessenger.testkit.sim.check;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What must arrive does arrive: after all faults, a request between each pair of engines. */
final class ArrivalChecker implements WorldListener {
    /** By transfer, the decoders' nodes at which it has not arrived, each as often as it was sent there. */
    private final Map<String, List<String>> missing = new LinkedHashMap<>();

    private final Map<String, String> transferByRequest = new HashMap<>();

    @Override
    public void requestRouted(String transferId, List<String> prefillers, List<String> decoders, boolean mustArrive) {
        if (mustArrive) {
            missing.computeIfAbsent(transferId, id -> new ArrayList<>()).addAll(decoders);
        }
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        transferByRequest.put(fetch.process() + " " + fetch.request(), fetch.transferId());
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        String transferId = transferByRequest.get(process + " " + request);
        List<String> nodes = missing.getOrDefault(transferId, new ArrayList<>());
        nodes.remove(BoundChecker.nodeOf(process));
        if (nodes.isEmpty()) {
            missing.remove(transferId);
        }
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        String transferId = transferByRequest.get(process + " " + request);
        if (missing.containsKey(transferId)) {
            throw new Violation(
                    "Arrival", "after all faults, " + request + " did not arrive at " + process + ": " + reason);
        }
    }

    @Override
    public void worldAtRest() {
        if (!missing.isEmpty()) {
            throw new Violation("Arrival", "after all faults, no KV arrived of " + missing);
        }
    }
}
