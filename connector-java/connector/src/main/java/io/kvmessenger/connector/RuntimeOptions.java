package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.transfer.FabricChoice;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The options of any messenger, whatever it moves: identity, addresses, transports, secrets, limits. A value.
 *
 * @param advertisePort control port that peers are told to dial; 0 = the one that is listened on
 * @param metricsPeers number of peers with metrics of their own; 0 = none
 * @param pageKey opens the metrics server's pages that are not for every reader; "" = they stay closed
 * @param tls secures control links
 * @param tcpInClear whether KV over tcp is sent in clear although control links are secured
 * @param transferWorkers number of threads that peers are spread over; 0 = as many as suit the machine
 * @param fabric libfabric's library and provider, if it is a transport
 * @param verbsDevices the RDMA devices of the transport verbs; empty = the one with the reachable address, or the first
 * @param dmaBuf whether NICs access device memory directly, where supported
 * @param dataHosts addresses that data paths are offered on and dialled from; empty = the one that peers are told
 * @param dataPort port that data paths are accepted on; 0 = any free port
 * @param advertiseDataPorts ports that peers are told for data paths; empty = those that are listened on
 */
record RuntimeOptions(
        String engineId,
        String listenHost,
        int listenPort,
        String advertiseHost,
        int advertisePort,
        String metricsHost,
        int metricsPort,
        int metricsPeers,
        String pageKey,
        String sharedSecret,
        List<String> transports,
        int streamsPerPeer,
        int transferWorkers,
        FabricChoice fabric,
        List<String> verbsDevices,
        boolean dmaBuf,
        TlsFiles tls,
        boolean tcpInClear,
        List<String> dataHosts,
        int dataPort,
        List<Integer> advertiseDataPorts,
        ProtocolLimits limits) {
    static RuntimeOptions read(Fields options) {
        return new RuntimeOptions(
                options.text("engineId"),
                options.text("listenHost"),
                options.count("listenPort"),
                options.text("advertiseHost"),
                options.has("advertisePort") ? options.count("advertisePort") : 0,
                options.text("metricsHost"),
                (int) options.integer("metricsPort"),
                options.has("metricsPeers") ? options.count("metricsPeers") : 0,
                options.textIfGiven("pageKey"),
                options.text("sharedSecret"),
                options.texts("transports"),
                options.count("streamsPerPeer"),
                options.has("transferWorkers") ? options.count("transferWorkers") : 0,
                new FabricChoice(options.textIfGiven("libfabricLibrary"), options.textIfGiven("libfabricProvider")),
                options.has("verbsDevices") ? options.texts("verbsDevices") : List.of(),
                !options.has("dmaBuf") || options.flagIfGiven("dmaBuf"),
                new TlsFiles(
                        options.textIfGiven("tlsCertificate"),
                        options.textIfGiven("tlsKey"),
                        options.textIfGiven("tlsCa")),
                options.flagIfGiven("tcpInClear"),
                options.has("dataHosts") ? options.texts("dataHosts") : List.of(),
                options.has("dataPort") ? options.count("dataPort") : 0,
                options.has("advertiseDataPorts")
                        ? Arrays.stream(options.counts("advertiseDataPorts"))
                                .boxed()
                                .toList()
                        : List.of(),
                limits(options));
    }

    /** Whether tcp is encrypted. Its keys are exchanged on control links, which are confidential only with TLS. */
    boolean sealsTcp() {
        return tls.isGiven() && !tcpInClear;
    }

    /** The host that peers are told to connect to. */
    String reachableHost() {
        return advertiseHost.isEmpty() ? listenHost : advertiseHost;
    }

    private static ProtocolLimits limits(Fields options) {
        return new ProtocolLimits(
                nanos(options, "grantWaitMillis"),
                nanos(options, "fetchLimitMillis"),
                nanos(options, "connectLimitMillis"),
                nanos(options, "heartbeatMillis"),
                nanos(options, "silenceLimitMillis"),
                nanos(options, options.has("unheardLimitMillis") ? "unheardLimitMillis" : "grantWaitMillis"),
                options.has("unheardAskedMillis") ? nanos(options, "unheardAskedMillis") : 0);
    }

    private static long nanos(Fields options, String name) {
        return TimeUnit.MILLISECONDS.toNanos(options.integer(name));
    }
}
