package io.kvmessenger.connector;

import io.kvmessenger.transfer.Driver;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.nio.file.Path;
import java.util.Set;
import java.util.stream.Collectors;

/** Chooses and opens the transfer engine of a messenger. */
final class TransferWiring {
    /** System property of the end-to-end tests: send zeros instead of KV, to see that somebody notices. */
    static final String DROP_PAYLOAD_PROPERTY = "kvmessenger.fault.dropPayload";

    /** System property of the end-to-end tests: the file that {@link WriteHoldingEngine} looks at. */
    static final String HOLD_WRITES_PROPERTY = "kvmessenger.fault.holdWrites";

    private static final int REQUESTS_PER_PEER_MAX = 1024;

    private TransferWiring() {}

    static TransferEngine open(OpenRequest request) {
        TransferEngine engine = TransferEngines.open(new TransferOptions(
                request.listenHost(),
                request.advertiseHost(),
                request.dataPort(),
                request.transports(),
                request.streamsPerPeer(),
                REQUESTS_PER_PEER_MAX,
                request.limits().connectLimitNs(),
                Driver.forCores(Runtime.getRuntime().availableProcessors())));
        return withFaults(engine, request);
    }

    private static TransferEngine withFaults(TransferEngine engine, OpenRequest request) {
        if (Boolean.getBoolean(DROP_PAYLOAD_PROPERTY)) {
            return new PayloadDroppingEngine(engine, contextAddresses(request));
        }
        String holdingFile = System.getProperty(HOLD_WRITES_PROPERTY);
        return holdingFile == null ? engine : new WriteHoldingEngine(engine, Path.of(holdingFile));
    }

    private static Set<Long> contextAddresses(OpenRequest request) {
        return request.context().stream().map(kind -> kind.memory().address()).collect(Collectors.toSet());
    }
}
