package io.kvmessenger.messenger.port;

/**
 * How much a messenger keeps for its peers: what each of them can make it hold is bounded by one of these. Parameters,
 * so that a simulation reaches them with little traffic; production has {@link #PRODUCTION}.
 *
 * @param handshakesMax incoming links whose handshake is incomplete; one more, and the host with the most loses its
 *     oldest
 * @param decodersMax decoders attached to one prefiller; one more waits until one of them leaves
 * @param decodersKept beyond so many, decoders with nothing under way are asked to leave
 * @param expectedTransfersMax transfers that the session of one decoder may expect
 * @param grantsWaitingMax grants that wait for their prefill, over all decoders
 * @param grantBytesWaitingMax heap bytes that the page lists of one decoder's waiting grants may take
 * @param grantBytesWaitingAllMax heap bytes that the page lists of all decoders' waiting grants may take
 * @param endedTransfersMax ended transfers remembered, so that the answer to a late message can say how its transfer
 *     ended
 * @param checksumsPerFrameMax checksums of writes that a prefiller collects before it sends them
 */
public record Capacities(
        int handshakesMax,
        int decodersMax,
        int decodersKept,
        int expectedTransfersMax,
        int grantsWaitingMax,
        long grantBytesWaitingMax,
        long grantBytesWaitingAllMax,
        int endedTransfersMax,
        int checksumsPerFrameMax) {
    private static final int CHECKSUMS_PER_FRAME_MAX = 256;

    public static final Capacities PRODUCTION = new Capacities(
            ProtocolLimits.HANDSHAKES_MAX,
            ProtocolLimits.DECODERS_MAX,
            ProtocolLimits.DECODERS_KEPT,
            ProtocolLimits.EXPECTED_TRANSFERS_MAX,
            ProtocolLimits.GRANTS_WAITING_MAX,
            ProtocolLimits.GRANT_BYTES_WAITING_MAX,
            ProtocolLimits.GRANT_BYTES_WAITING_ALL_MAX,
            ProtocolLimits.ENDED_TRANSFERS_MAX,
            CHECKSUMS_PER_FRAME_MAX);

    public Capacities withDecodersKept(int decoders) {
        return new Capacities(
                handshakesMax,
                decodersMax,
                decoders,
                expectedTransfersMax,
                grantsWaitingMax,
                grantBytesWaitingMax,
                grantBytesWaitingAllMax,
                endedTransfersMax,
                checksumsPerFrameMax);
    }
}
