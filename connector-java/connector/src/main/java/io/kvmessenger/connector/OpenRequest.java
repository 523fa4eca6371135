package io.kvmessenger.connector;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.ModelSettings;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.FabricChoice;
import io.kvmessenger.transfer.Memory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * An engine's request to open a messenger: its options and the description of its KV cache. A value.
 *
 * @param advertisePort control port that peers are told to dial; 0 = the one that is listened on
 * @param metricsPeers number of peers with metrics of their own; 0 = none
 * @param pageKey opens the metrics server's pages that are not for every reader; "" = they stay closed
 * @param engineApiKey sent to {@code engineApiUrl}; "" = none
 * @param tls secures control links
 * @param tcpInClear whether KV over tcp is sent in clear although control links are secured
 * @param transferWorkers number of threads that peers are spread over; 0 = as many as suit the machine
 * @param fabric libfabric's library and provider, if it is a transport
 * @param verbsDevices the RDMA devices of the transport verbs; empty = the one with the reachable address, or the first
 * @param dmaBuf whether NICs access device memory directly, where supported
 * @param dataHosts addresses that data paths are offered on and dialled from; empty = the one that peers are told
 * @param dataPort port that data paths are accepted on; 0 = any free port
 * @param advertiseDataPorts ports that peers are told for data paths; empty = those that are listened on
 * @param memories where the KV lies in this process, by rank of the geometry and by memory index
 * @param context kinds of rows that a transfer carries besides its KV
 * @param layerCounterLag increments of the layer counter after a layer's own that prove it complete on all ranks
 */
record OpenRequest(
        Role role,
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
        String engineApiUrl,
        String engineApiKey,
        TlsFiles tls,
        boolean tcpInClear,
        List<String> dataHosts,
        int dataPort,
        List<Integer> advertiseDataPorts,
        Timelines timelines,
        ProtocolLimits limits,
        ChecksumMode checksumMode,
        KvGeometry geometry,
        List<List<Memory>> memories,
        List<ContextMemory> context,
        int layerCounterLag) {
    /** Where the rows of one kind of context lie. */
    record ContextMemory(ContextSlots slots, Memory memory) {}

    /** What the engine does with its KV. */
    enum Role {
        PREFILLER,
        DECODER,
        BOTH;

        boolean listens() {
            return this != DECODER;
        }
    }

    /** How much detail of a transfer's timing the engine receives. */
    enum Timelines {
        /** None. */
        OFF,
        /** Totals. */
        SUMMARY,
        /** Totals and each chunk and layer, if they fit. */
        FULL
    }

    OpenRequest {
        boolean onDevice = memories.stream().flatMap(List::stream).anyMatch(Memory.Device.class::isInstance);
        if (onDevice && checksumMode != ChecksumMode.OFF) {
            throw new IllegalArgumentException("option page_checksum is "
                    + checksumMode.name().toLowerCase(Locale.ROOT)
                    + ", expected off while the KV cache is in device memory, which the processor cannot read");
        }
    }

    static OpenRequest read(byte[] json) {
        Fields request = CommandReader.parse("open", json);
        Fields options = request.object("options");
        Fields wire = request.object("geometry");
        KvGeometry geometry = geometry(wire);
        return new OpenRequest(
                Role.valueOf(options.text("role").toUpperCase(Locale.ROOT)),
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
                options.text("engineApiUrl"),
                options.textIfGiven("engineApiKey"),
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
                Timelines.valueOf(options.text("timelines").toUpperCase(Locale.ROOT)),
                limits(options),
                ChecksumMode.valueOf(options.text("pageChecksum").toUpperCase(Locale.ROOT)),
                geometry,
                memories(wire, geometry),
                request.has("contextRows") ? context(request) : List.of(),
                request.has("layerCounterLag") ? request.count("layerCounterLag") : 0);
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

    private static KvGeometry geometry(Fields wire) {
        Sharding sharding =
                new Sharding(wire.count("tpSize"), wire.count("ppSize"), wire.has("dpSize") ? wire.count("dpSize") : 1);
        return new KvGeometry(
                wire.text("model"),
                wire.textIfGiven("weightsDigest"),
                settings(wire),
                sharding,
                wire.objects("groups").stream().map(OpenRequest::group).toList(),
                wire.objects("ranks").stream().map(OpenRequest::rank).toList());
    }

    private static ModelSettings settings(Fields wire) {
        Map<String, String> values = new LinkedHashMap<>();
        if (wire.has("settings")) {
            Fields settings = wire.object("settings");
            settings.values().keySet().forEach(name -> values.put(name, settings.text(name)));
        }
        return new ModelSettings(
                values, wire.has("settingsMayDiffer") ? Set.copyOf(wire.texts("settingsMayDiffer")) : Set.of());
    }

    private static KvGroup group(Fields wire) {
        return new KvGroup(
                GroupKind.parse(wire.text("kind"), wire.count("windowTokens")),
                wire.text("dtype"),
                wire.count("elementBytes"),
                wire.count("pageTokens"),
                PageLayout.parse(wire.text("layout")),
                wire.count("kvHeadCount"),
                wire.count("pageCount"));
    }

    private static RankGeometry rank(Fields wire) {
        List<LayerGeometry> layers = wire.objects("layers").stream()
                .map(layer -> new LayerGeometry(
                        layer.text("name"),
                        layer.count("groupIndex"),
                        layer.count("memoryIndex"),
                        layer.integer("offsetBytes"),
                        layer.integer("pageStrideBytes"),
                        layer.count("pageBytes")))
                .toList();
        return new RankGeometry(wire.count("tpRank"), wire.count("ppRank"), layers);
    }

    private static List<List<Memory>> memories(Fields wire, KvGeometry geometry) {
        List<List<Memory>> memories = new ArrayList<>();
        for (Fields rank : wire.objects("ranks")) {
            memories.add(
                    rank.objects("memories").stream().map(OpenRequest::memory).toList());
            requireRoom(memories.getLast(), geometry, memories.size() - 1);
        }
        return memories;
    }

    private static Memory memory(Fields wire) {
        String kind = wire.has("kind") ? wire.text("kind") : "host";
        return switch (kind) {
            case "host" ->
                Memory.hostAt(wire.integer("address"), wire.integer("lengthBytes"), (int) wire.integer("memfd"));
            case "cuda" ->
                new Memory.Device(
                        wire.count("device"),
                        wire.integer("address"),
                        wire.integer("lengthBytes"),
                        handleKind(wire.text("handleKind")));
            default ->
                throw new IllegalArgumentException(
                        "a memory is of kind " + kind + ", expected host or cuda: see docs/boundary.md");
        };
    }

    private static Memory.HandleKind handleKind(String name) {
        return switch (name) {
            case "none" -> Memory.HandleKind.NONE;
            case "posixFd" -> Memory.HandleKind.POSIX_FD;
            case "fabric" -> Memory.HandleKind.FABRIC;
            default ->
                throw new IllegalArgumentException(
                        "a memory has handleKind " + name + ", expected none, posixFd or fabric: see docs/boundary.md");
        };
    }

    private static List<ContextMemory> context(Fields request) {
        return request.objects("contextRows").stream()
                .map(OpenRequest::contextRow)
                .toList();
    }

    private static ContextMemory contextRow(Fields row) {
        Memory memory = memory(row);
        ContextKind kind = new ContextKind(row.text("name"), row.count("rowBytes"), sending(row));
        return new ContextMemory(ContextSlots.in(kind, row.integer("rowStrideBytes"), memory.lengthBytes()), memory);
    }

    private static ContextKind.Sending sending(Fields row) {
        String sending = row.has("sending") ? row.text("sending") : "always";
        return switch (sending) {
            case "always" -> ContextKind.Sending.ALWAYS;
            case "onRequest" -> ContextKind.Sending.ON_REQUEST;
            default ->
                throw new IllegalArgumentException("context row " + row.text("name") + " has sending " + sending
                        + ", expected always or onRequest: see docs/boundary.md");
        };
    }

    private static void requireRoom(List<Memory> memories, KvGeometry geometry, int rankIndex) {
        RankGeometry rank = geometry.ranks().get(rankIndex);
        if (memories.size() != rank.memoryCount()) {
            throw new IllegalArgumentException("tpRank " + rank.tpRank() + ", ppRank " + rank.ppRank() + " has "
                    + memories.size() + " memories, its layers lie in " + rank.memoryCount()
                    + ": list each memory that a layer's memoryIndex names, and no other");
        }
        for (int i = 0; i < memories.size(); i++) {
            if (memories.get(i).lengthBytes() < geometry.spanBytes(rankIndex, i)) {
                throw new IllegalArgumentException("memory " + i + " of tpRank " + rank.tpRank() + ", ppRank "
                        + rank.ppRank() + " has " + memories.get(i).lengthBytes()
                        + " bytes, expected at least the " + geometry.spanBytes(rankIndex, i)
                        + " that its layers take: check offsetBytes, pageStrideBytes and pageCount");
            }
        }
    }
}
