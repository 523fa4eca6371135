package io.kvmessenger.connector;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.ProtocolLimits;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/**
 * Everything an engine says when it opens a messenger: its options and what its KV cache looks like. A value.
 *
 * @param memoryAddress where the KV memory starts in this process
 * @param memfd the descriptor the memory maps, or -1
 */
record OpenRequest(
        Role role,
        String engineId,
        String listenHost,
        int listenPort,
        String advertiseHost,
        String metricsHost,
        int metricsPort,
        String sharedSecret,
        List<String> transports,
        int streamsPerPeer,
        String engineApiUrl,
        ProtocolLimits limits,
        KvGeometry geometry,
        long memoryAddress,
        long memoryLengthBytes,
        int memfd) {
    /** What the engine does with its KV. */
    enum Role {
        PREFILLER,
        DECODER,
        BOTH;

        boolean listens() {
            return this != DECODER;
        }
    }

    static OpenRequest read(byte[] json) {
        Fields request = CommandReader.parse("open", json);
        Fields options = request.object("options");
        Fields geometry = request.object("geometry");
        Fields memory = geometry.object("memory");
        return new OpenRequest(
                Role.valueOf(options.text("role").toUpperCase(Locale.ROOT)),
                options.text("engineId"),
                options.text("listenHost"),
                options.count("listenPort"),
                options.text("advertiseHost"),
                options.text("metricsHost"),
                (int) options.integer("metricsPort"),
                options.text("sharedSecret"),
                options.texts("transports"),
                options.count("streamsPerPeer"),
                options.text("engineApiUrl"),
                limits(options),
                geometry(geometry),
                memory.integer("address"),
                memory.integer("lengthBytes"),
                (int) memory.integer("memfd"));
    }

    /** The host that peers are told. */
    String reachableHost() {
        return advertiseHost.isEmpty() ? listenHost : advertiseHost;
    }

    private static ProtocolLimits limits(Fields options) {
        return new ProtocolLimits(
                nanos(options, "grantWaitMillis"),
                nanos(options, "fetchLimitMillis"),
                nanos(options, "connectLimitMillis"),
                nanos(options, "heartbeatMillis"),
                nanos(options, "silenceLimitMillis"));
    }

    private static long nanos(Fields options, String name) {
        return TimeUnit.MILLISECONDS.toNanos(options.integer(name));
    }

    private static KvGeometry geometry(Fields wire) {
        int kvHeadCount = wire.count("kvHeadCount");
        int tpRank = wire.count("tpRank");
        Sharding sharding = new Sharding(wire.count("tpSize"), wire.count("ppSize"), 1);
        List<LayerGeometry> layers = wire.objects("layers").stream()
                .map(layer -> new LayerGeometry(
                        layer.text("name"),
                        layer.integer("offsetBytes"),
                        layer.integer("pageStrideBytes"),
                        layer.count("pageBytes")))
                .toList();
        RankGeometry rank = new RankGeometry(
                tpRank, wire.count("ppRank"), sharding.headsOf(tpRank, kvHeadCount), wire.count("pageCount"), layers);
        return new KvGeometry(
                wire.text("model"),
                wire.text("dtype"),
                wire.count("elementBytes"),
                wire.count("pageTokens"),
                PageLayout.parse(wire.text("layout")),
                kvHeadCount,
                sharding,
                List.of(rank));
    }
}
