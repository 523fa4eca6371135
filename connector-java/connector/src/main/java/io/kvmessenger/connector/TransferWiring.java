package io.kvmessenger.connector;

import io.kvmessenger.transfer.Doorbell;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;

/** Chooses and opens the transfer engine of a messenger. */
final class TransferWiring {
    /** System property of the end-to-end tests: send zeros instead of KV, to see that somebody notices. */
    static final String DROP_PAYLOAD_PROPERTY = "kvmessenger.fault.dropPayload";

    private static final int REQUESTS_PER_PEER_MAX = 1024;

    private TransferWiring() {}

    static TransferEngine open(OpenRequest request, Doorbell doorbell) {
        TransferEngine engine = TransferEngines.open(
                new TransferOptions(
                        request.listenHost(),
                        request.advertiseHost(),
                        request.transports(),
                        request.streamsPerPeer(),
                        REQUESTS_PER_PEER_MAX,
                        request.limits().connectLimitNs()),
                doorbell);
        return Boolean.getBoolean(DROP_PAYLOAD_PROPERTY) ? new PayloadDroppingEngine(engine) : engine;
    }
}
