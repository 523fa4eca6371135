package io.kvmessenger.weights;

import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.port.MessengerState;
import java.util.List;

/** What the status page shows of weights: the peers. */
final class WeightsState {
    private WeightsState() {}

    static MessengerState of(SubjectPorts ports) {
        List<MessengerState.PeerRow> peers = ports.sessions().rows(ports.clock().nowNs());
        return new MessengerState(peers, 0, List.of(), 0, List.of(), 0, List.of(), List.of(), List.of());
    }
}
