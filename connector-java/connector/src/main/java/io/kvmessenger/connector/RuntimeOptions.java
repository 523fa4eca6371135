package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.transfer.TransferOptions;
import java.util.concurrent.TimeUnit;

/**
 * The options of any messenger, whatever it moves: identity, control port, secrets, metrics, limits, and those of its
 * transfer engine. A value.
 *
 * @param advertisePort control port that peers are told to dial; 0 = the one that is listened on
 * @param metricsPeers number of peers with metrics of their own; 0 = none
 * @param pageKey opens the metrics server's pages that are not for every reader; "" = they stay closed
 * @param tls secures control links
 * @param transfer with the host that control links are listened on, too
 */
record RuntimeOptions(
        String engineId,
        int listenPort,
        int advertisePort,
        String metricsHost,
        int metricsPort,
        int metricsPeers,
        String pageKey,
        String sharedSecret,
        TlsFiles tls,
        ProtocolLimits limits,
        TransferOptions transfer) {
    static RuntimeOptions read(Fields options) {
        TlsFiles tls = new TlsFiles(
                options.textIfGiven("tlsCertificate"), options.textIfGiven("tlsKey"), options.textIfGiven("tlsCa"));
        // The keys of tcp are exchanged on control links, which are confidential only with TLS.
        boolean sealTcp = tls.isGiven() && !options.flagIfGiven("tcpInClear");
        ProtocolLimits limits = limits(options);
        return new RuntimeOptions(
                options.text("engineId"),
                options.count("listenPort"),
                options.countIfGiven("advertisePort"),
                options.text("metricsHost"),
                (int) options.integer("metricsPort"),
                options.countIfGiven("metricsPeers"),
                options.textIfGiven("pageKey"),
                options.text("sharedSecret"),
                tls,
                limits,
                TransferWiring.read(options, limits, sealTcp));
    }

    private static ProtocolLimits limits(Fields options) {
        ProtocolLimits limits = new ProtocolLimits(
                nanos(options, "grantWaitMillis"),
                nanos(options, "fetchLimitMillis"),
                nanos(options, "connectLimitMillis"),
                nanos(options, "heartbeatMillis"),
                nanos(options, "silenceLimitMillis"),
                nanos(options, options.has("unheardLimitMillis") ? "unheardLimitMillis" : "grantWaitMillis"),
                options.has("unheardAskedMillis") ? nanos(options, "unheardAskedMillis") : 0);
        Capacities capacities = limits.capacities();
        if (options.has("decodersKept")) {
            limits = limits.with(capacities.withDecodersKept((int) options.integer("decodersKept")));
        }
        return options.has("offerLimitMillis") ? limits.withOfferLimitNs(nanos(options, "offerLimitMillis")) : limits;
    }

    private static long nanos(Fields options, String name) {
        return TimeUnit.MILLISECONDS.toNanos(options.integer(name));
    }
}
