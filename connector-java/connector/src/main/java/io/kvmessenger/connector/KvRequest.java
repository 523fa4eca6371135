package io.kvmessenger.connector;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.ModelSettings;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Memory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * What a messenger of a KV cache is opened for. A value.
 *
 * @param engineApiUrl where prompts are enqueued that decoders bring; "" = nowhere
 * @param engineApiKey sent to {@code engineApiUrl}; "" = none
 * @param memories where the KV lies in this process, by rank of the geometry and by memory index
 * @param context kinds of rows that a transfer carries besides its KV
 * @param asksByEvents whether peers' questions reach the engine as events, and not by its API
 * @param layerCounterLag increments of the layer counter after a layer's own that prove it complete on all ranks
 */
record KvRequest(
        Role role,
        String engineApiUrl,
        String engineApiKey,
        KvEvents.Timelines timelines,
        ChecksumMode pageChecksum,
        KvGeometry geometry,
        List<List<Memory>> memories,
        List<ContextMemory> context,
        boolean asksByEvents,
        int layerCounterLag)
        implements SubjectRequest {
    /** Where the rows of one kind of context lie. */
    record ContextMemory(ContextSlots slots, Memory memory) {}

    /** What the engine does with its KV. */
    enum Role {
        PREFILLER,
        DECODER,
        BOTH;

        /** Whether decoders dial it. */
        boolean listens() {
            return this != DECODER;
        }
    }

    KvRequest {
        boolean onDevice = memories.stream().flatMap(List::stream).anyMatch(Memory.Device.class::isInstance);
        if (onDevice && pageChecksum != ChecksumMode.OFF) {
            throw new IllegalArgumentException("option page_checksum is "
                    + pageChecksum.name().toLowerCase(Locale.ROOT)
                    + ", expected off while the KV cache is in device memory, which the processor cannot read");
        }
    }

    static KvRequest read(Fields options, Fields subject) {
        Fields wire = subject.object("geometry");
        KvGeometry geometry = geometry(wire);
        return new KvRequest(
                Role.valueOf(options.text("role").toUpperCase(Locale.ROOT)),
                options.text("engineApiUrl"),
                options.textIfGiven("engineApiKey"),
                KvEvents.Timelines.valueOf(options.text("timelines").toUpperCase(Locale.ROOT)),
                ChecksumMode.valueOf(options.text("pageChecksum").toUpperCase(Locale.ROOT)),
                geometry,
                memories(wire, geometry),
                subject.has("contextRows") ? context(subject) : List.of(),
                subject.flagIfGiven("asksByEvents"),
                subject.countIfGiven("layerCounterLag"));
    }

    @Override
    public boolean listens() {
        return role.listens();
    }

    @Override
    public Set<Long> contextAddresses() {
        return context.stream().map(kind -> kind.memory().address()).collect(Collectors.toSet());
    }

    @Override
    public EngineSubject open(SubjectPorts ports) {
        return new KvEngine(this, ports);
    }

    private static KvGeometry geometry(Fields wire) {
        Sharding sharding =
                new Sharding(wire.count("tpSize"), wire.count("ppSize"), wire.has("dpSize") ? wire.count("dpSize") : 1);
        return new KvGeometry(
                wire.text("model"),
                wire.textIfGiven("weightsDigest"),
                settings(wire),
                sharding,
                wire.objects("groups").stream().map(KvRequest::group).toList(),
                wire.objects("ranks").stream().map(KvRequest::rank).toList());
    }

    private static ModelSettings settings(Fields wire) {
        Map<String, String> values = new LinkedHashMap<>();
        if (wire.has("settings")) {
            Fields settings = wire.object("settings");
            settings.values().keySet().forEach(name -> values.put(name, settings.text(name)));
        }
        return new ModelSettings(values, Set.copyOf(wire.textsIfGiven("settingsMayDiffer")));
    }

    private static KvGroup group(Fields wire) {
        return new KvGroup(
                GroupKind.parse(wire.text("kind"), wire.count("windowTokens")),
                wire.text("dtype"),
                wire.count("elementBytes"),
                wire.count("pageTokens"),
                PageLayout.parse(wire.text("layout")),
                wire.count("kvHeadCount"),
                wire.count("pageCount"),
                Math.max(1, wire.countIfGiven("pageShares")));
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
                    rank.objects("memories").stream().map(KvRequest::memory).toList());
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
                .map(KvRequest::contextRow)
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
