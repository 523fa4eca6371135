package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.ModelSettings;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.wire.Geometry;
import io.kvmessenger.messenger.wire.GeometryWire;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Two engines whose weights, pages and names are equal, and whose settings are not. */
class SettingsTest extends MessengerPair {
    private static final String DIFFERENCE = "the prefiller's num_experts_per_tok is 1, the decoder's is 4";

    private static KvGeometry geometry(String experts, String... mayDiffer) {
        KvGeometry base = Geometries.of("m");
        Map<String, String> values = new LinkedHashMap<>(Map.of("num_experts_per_tok", experts));
        values.put("hidden_act", "silu");
        return new KvGeometry(
                base.model(),
                "",
                new ModelSettings(values, Set.of(mayDiffer)),
                base.sharding(),
                base.groups(),
                base.ranks());
    }

    private void meet(KvGeometry ofPrefiller, KvGeometry ofDecoder) {
        prefiller = new Side("prefiller", 1, 0, ChecksumMode.OFF, ofPrefiller);
        decoder = new Side("decoder", 2, 0, ChecksumMode.OFF, ofDecoder);
        fetch("warm-up", 1, 0);
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        carry();
    }

    @Test
    void shouldFailRequestsWithTheSettingAndBothValues() {
        meet(geometry("1"), geometry("4"));

        assertThat(decoder.reported).contains("failed warm-up");
        assertThat(decoder.lastFailure).contains(DIFFERENCE + ": start both with the same, or name it in");
        assertThat(prefiller.logged).anyMatch(line -> line.startsWith("WARNING") && line.contains(DIFFERENCE));
    }

    @Test
    void shouldConnectEqualSettingsWithoutAWord() {
        meet(geometry("4", "num_experts_per_tok"), geometry("4", "num_experts_per_tok"));

        assertThat(decoder.reported).isEmpty();
        assertThat(decoder.logged).isEmpty();
        assertThat(prefiller.logged).isEmpty();
    }

    @Test
    void shouldWarnOnBothSidesOfADifferenceThatBothExcuse() {
        meet(geometry("1", "num_experts_per_tok"), geometry("4", "num_experts_per_tok"));

        assertThat(decoder.reported).isEmpty();
        for (Side side : List.of(prefiller, decoder)) {
            assertThat(side.logged)
                    .singleElement()
                    .asString()
                    .startsWith("WARNING")
                    .contains(DIFFERENCE + ", which settings_may_differ excuses");
        }
    }

    @Test
    void shouldRefuseADifferenceThatOnlyOneSideExcuses() {
        meet(geometry("1", "num_experts_per_tok"), geometry("4"));

        assertThat(decoder.lastFailure).contains(DIFFERENCE);
    }

    /** It knows no settings, sends none, and ignores ours. */
    @Test
    void shouldConnectWithAnEarlierBuildByTheModelsFingerprint() {
        meet(geometry("1"), Geometries.of("m"));

        assertThat(decoder.reported).isEmpty();
        meet(Geometries.of("m"), geometry("4"));
        assertThat(decoder.reported).isEmpty();
        meet(geometry("1"), Geometries.of("other"));
        assertThat(decoder.lastFailure).contains("the prefiller's model is m, the decoder's is other");
    }

    @Test
    void shouldCarryAllSettingsInTheirOrder() throws Exception {
        KvGeometry sent = geometry("1", "hidden_act", "num_experts_per_tok");
        KvGeometry read =
                GeometryWire.decode(Geometry.parseFrom(GeometryWire.encode(sent).toByteArray()));

        assertThat(read).isEqualTo(sent);
        assertThat(List.copyOf(read.settings().values().keySet())).containsExactly("num_experts_per_tok", "hidden_act");
    }
}
