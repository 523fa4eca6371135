package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class ModelSettingsTest {
    private static final Map<String, String> ALIKE = ordered(
            "model", "tiny", "num_experts_per_tok", "4", "rope_parameters.factor", "8.0", "built.rope.long", "long");

    private static Map<String, String> ordered(String... namesAndValues) {
        Map<String, String> made = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            made.put(namesAndValues[i], namesAndValues[i + 1]);
        }
        return made;
    }

    private static KvGeometry with(String model, Map<String, String> settings, String... mayDiffer) {
        KvGeometry base = Shapes.geometry(PageLayout.HND, 2, 2, 2, 1, 1);
        return new KvGeometry(
                model,
                "",
                new ModelSettings(settings, Set.of(mayDiffer)),
                base.sharding(),
                base.groups(),
                base.ranks());
    }

    private static Map<String, String> changed(String name) {
        Map<String, String> made = new LinkedHashMap<>(ALIKE);
        made.put(name, "other");
        return made;
    }

    static Stream<String> names() {
        return ALIKE.keySet().stream();
    }

    @ParameterizedTest
    @MethodSource("names")
    void shouldRefuseAnySettingThatDiffersAndNameItWithBothValues(String name) {
        KvGeometry one = with("m", ALIKE);
        KvGeometry other = with("m", changed(name));
        assertThat(Compatibility.check(one, one)).isEmpty();
        assertThat(Compatibility.check(one, other).orElseThrow().sentence())
                .isEqualTo("the prefiller's " + name + " is " + ALIKE.get(name)
                        + ", the decoder's is other: start both with the same, or "
                        + (name.equals("model")
                                ? "set model_id alike on both where the model is the same"
                                : "name it in settings_may_differ on both sides where that changes no KV"));
        assertThat(Compatibility.checkPages(other, one).orElseThrow().difference())
                .isEqualTo("the prefiller's " + name + " is other, the decoder's is " + ALIKE.get(name));
    }

    @ParameterizedTest
    @MethodSource("names")
    void shouldTakeAMissingNameForNoneUnlessAStageBuildsNoSuchLayer(String name) {
        Map<String, String> without = new LinkedHashMap<>(ALIKE);
        without.remove(name);
        boolean built = name.startsWith(ModelSettings.BUILT);
        assertThat(Compatibility.check(with("m", ALIKE), with("m", without)).map(Mismatch::targetValue))
                .isEqualTo(built ? Optional.empty() : Optional.of("none"));
        assertThat(Compatibility.check(with("m", without), with("m", ALIKE)).map(Mismatch::sourceValue))
                .isEqualTo(built ? Optional.empty() : Optional.of("none"));
    }

    @ParameterizedTest
    @MethodSource("names")
    void shouldExcuseASettingThatBothSidesName(String name) {
        KvGeometry one = with("m", ALIKE, name);
        assertThat(Compatibility.check(one, with("m", changed(name), name))).isEmpty();
        assertThat(ModelSettings.excused(
                        one.settings(), with("m", changed(name), name).settings()))
                .extracting(Mismatch::field)
                .containsExactly(name);
        assertThat(Compatibility.check(one, with("m", changed(name)))).isPresent();
        assertThat(Compatibility.check(with("m", ALIKE), with("m", changed(name), name)))
                .isPresent();
    }

    @Test
    void shouldExcuseAllPartsOfANamedSettingAndNothingThatOnlyBeginsAlike() {
        KvGeometry one = with("m", ALIKE, "rope_parameters", "num_experts");
        assertThat(Compatibility.check(one, with("m", changed("rope_parameters.factor"), "rope_parameters")))
                .isEmpty();
        assertThat(Compatibility.check(one, with("m", changed("num_experts_per_tok"), "num_experts")))
                .isPresent();
    }

    private static final String FORMAT = ModelSettings.PAGE_FORMAT;
    private static final String BYTES = ModelSettings.PAGE_BYTES;

    private static Optional<String> between(Map<String, String> one, Map<String, String> other) {
        KvGeometry source = with("m", one);
        KvGeometry target = with("m", other);
        Optional<String> found = Compatibility.check(source, target).map(Mismatch::field);
        assertThat(Compatibility.check(target, source).map(Mismatch::field)).isEqualTo(found);
        return found;
    }

    /** Each pair of what two sides may know: a backend's name, and what it writes if that is known. */
    @Test
    void shouldComparePagesByWhatIsInThemIfBothSidesKnowItAndByTheirNamesOtherwise() {
        for (String backend : List.of("flash", "infer")) {
            for (String held : List.of("", "key|value", "other")) {
                boolean sameName = backend.equals("flash");
                Optional<String> found = between(
                        ordered(FORMAT, "flash", BYTES, "key|value"),
                        held.isEmpty() ? ordered(FORMAT, backend) : ordered(FORMAT, backend, BYTES, held));
                Optional<String> byName = sameName ? Optional.empty() : Optional.of(FORMAT);
                assertThat(found)
                        .as(backend + " " + held)
                        .isEqualTo(
                                switch (held) {
                                    case "" -> byName;
                                    case "other" -> byName.or(() -> Optional.of(BYTES));
                                    default -> Optional.empty();
                                });
            }
        }
    }

    @Test
    void shouldExcuseAPageFormatAsAWholeWhereBothSidesNameIt() {
        KvGeometry flash = with("m", ordered(FORMAT, "flash", BYTES, "key|value"), FORMAT);
        KvGeometry other = with("m", ordered(FORMAT, "other", BYTES, "other"), FORMAT);
        assertThat(Compatibility.check(flash, other)).isEmpty();
        assertThat(ModelSettings.excused(flash.settings(), other.settings()))
                .extracting(Mismatch::field)
                .containsExactly(FORMAT);
    }

    @Test
    void shouldCompareTheModelsFingerprintWithASideThatKnowsNoSettings() {
        KvGeometry earlier = with("m@1f", Map.of());
        assertThat(Compatibility.check(with("m@1f", ALIKE), earlier)).isEmpty();
        assertThat(Compatibility.check(earlier, with("m@2e", ALIKE))).contains(new Mismatch("model", "m@1f", "m@2e"));
        assertThat(Compatibility.check(with("m@1f", ALIKE), with("m@2e", ALIKE)))
                .as("settings cover what the fingerprint does")
                .isEmpty();
    }

    @Test
    void shouldRefuseMoreOrLongerSettingsThanItWouldKeep() {
        Map<String, String> many = new LinkedHashMap<>();
        for (int i = 0; i <= ModelSettings.COUNT_MAX; i++) {
            many.put("name" + i, "");
        }
        String tooLong = "x".repeat(ModelSettings.LENGTH_MAX + 1);
        assertThatThrownBy(() -> new ModelSettings(many, Set.of())).hasMessageContaining("1025 settings");
        for (Map<String, String> each : List.of(Map.of("a", tooLong), Map.of(tooLong, "a"))) {
            assertThatThrownBy(() -> new ModelSettings(each, Set.of())).hasMessageContaining("257 characters");
        }
        assertThatThrownBy(() -> new ModelSettings(Map.of(), Set.of(tooLong))).hasMessageContaining("257 characters");
    }
}
