package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.RecordComponent;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/**
 * Python declares the options, and Java reads them: {@code options.json}, which {@code python/tests/options_for_java.py}
 * writes from Python's declarations, has each of them with a value that is not its default.
 */
final class OptionsTest {
    private static final Fields DECLARED = declared();
    private static final Fields OPTIONS = DECLARED.object("options");
    private static final String SUBJECT = """
        {"kind":"kv_cache","geometry":{"model":"tiny","tpSize":1,"ppSize":1,"groups":[{"kind":"full","windowTokens":0,
        "dtype":"float32","elementBytes":4,"pageTokens":16,"layout":"HND","kvHeadCount":1,"pageCount":2}],
        "ranks":[{"tpRank":0,"ppRank":0,"memories":[{"address":4096,"lengthBytes":4096,"memfd":-1}],"layers":[{"name":"0",
        "groupIndex":0,"memoryIndex":0,"offsetBytes":0,"pageStrideBytes":2048,"pageBytes":2048}]}]}}
        """;
    /** What a library's user sets, and a messenger chooses by itself. */
    private static final Set<TransferOption<?>> OF_THE_LIBRARY = Set.of(
            TransferOptions.REQUESTS_PER_PEER_MAX,
            TransferOptions.CONNECT_LIMIT_NS,
            TransferOptions.IDLE_LIMIT_NS,
            TransferOptions.SEAL_TCP,
            TransferOptions.THREADING,
            CudaTransport.LIBRARY);

    @Test
    void shouldReadEachOptionThatPythonDeclares() {
        Map<String, Object> byDefault = read(Map.of());
        for (String option : OPTIONS.values().keySet()) {
            Map<String, Object> changes =
                    OPTIONS.object(option).object("changes").values();
            assertThat(changes).as(option).isNotEmpty();
            Map<String, Object> read = read(changes);
            read.entrySet().removeAll(byDefault.entrySet());
            changes.forEach((name, value) ->
                    assertThat(read).as(option).containsEntry(nameInJava(name), valueInJava(name, value)));
        }
    }

    @Test
    void shouldKnowEachChoiceThatPythonOffers() {
        for (String option : OPTIONS.values().keySet()) {
            Fields described = OPTIONS.object(option);
            if (described.has("choices")) {
                Map.Entry<String, Object> change = described
                        .object("changes")
                        .values()
                        .entrySet()
                        .iterator()
                        .next();
                boolean list = change.getValue() instanceof List;
                described
                        .texts("choices")
                        .forEach(choice -> assertThatCode(
                                        () -> read(Map.of(change.getKey(), list ? List.of(choice) : choice)))
                                .as(option)
                                .doesNotThrowAnyException());
            }
        }
    }

    @Test
    void shouldLimitNumbersAsPythonDoes() {
        for (TransferOption<?> option : TransferEngines.options()) {
            if (option.type() == Integer.class && !OF_THE_LIBRARY.contains(option)) {
                int[] limits = OPTIONS.object(option.name()).counts("limits");
                set(option, limits[0]);
                set(option, limits[1]);
                assertThatThrownBy(() -> set(option, limits[0] - 1)).hasMessageContaining("option " + option.name());
                assertThatThrownBy(() -> set(option, limits[1] + 1)).hasMessageContaining("option " + option.name());
            }
        }
    }

    @Test
    void shouldDeclareNoOptionThatPythonDoesNot() {
        assertThat(TransferEngines.options().stream()
                        .filter(option -> !OF_THE_LIBRARY.contains(option))
                        .map(TransferOption::name)
                        .collect(Collectors.toSet()))
                .isSubsetOf(OPTIONS.values().keySet());
    }

    private static void set(TransferOption<?> option, int value) {
        TransferOptions.defaults().withUntyped(option, option.byDefault() instanceof List ? List.of(value) : value);
    }

    /** All values of the records that a request is read into, by the names of {@link #plain}. */
    private static Map<String, Object> read(Map<String, Object> changes) {
        Map<String, Object> options =
                new LinkedHashMap<>(DECLARED.object("passed").values());
        options.putAll(Map.of("tlsCertificate", "a", "tlsKey", "b", "tlsCa", "c")); // without TLS no tcp is sealed
        options.putAll(changes);
        Map<String, Object> request =
                Map.of("options", options, "subject", EngineDouble.decode(SUBJECT.getBytes(StandardCharsets.UTF_8)));
        Map<String, Object> values = new TreeMap<>();
        collect("", OpenRequest.read(EngineDouble.encode(request)), values);
        return values;
    }

    private static void collect(String name, Object value, Map<String, Object> values) {
        switch (value) {
            case TransferOptions options ->
                TransferEngines.options().forEach(option -> values.put(plain(option.name()), options.get(option)));
            case Record parts -> {
                for (RecordComponent component : parts.getClass().getRecordComponents()) {
                    String prefix = value instanceof TlsFiles ? "tls" : "";
                    collect(prefix + component.getName(), part(parts, component), values);
                }
            }
            case Enum<?> choice -> values.put(plain(name), choice.name().toLowerCase(Locale.ROOT));
            default -> values.put(plain(name), value);
        }
    }

    private static Object part(Record parts, RecordComponent component) {
        try {
            component.getAccessor().setAccessible(true);
            return component.getAccessor().invoke(parts);
        } catch (ReflectiveOperationException e) {
            throw new LinkageError(e.getMessage(), e);
        }
    }

    private static String nameInJava(String name) {
        return name.equals("tcpInClear") ? "sealtcp" : plain(name.replace("Millis", "Ns"));
    }

    private static Object valueInJava(String name, Object value) {
        return switch (value) {
            case Integer millis when name.endsWith("Millis") -> TimeUnit.MILLISECONDS.toNanos(millis);
            case Boolean inClear when name.equals("tcpInClear") -> !inClear;
            default -> value;
        };
    }

    private static String plain(String name) {
        return name.replace("_", "").toLowerCase(Locale.ROOT);
    }

    private static Fields declared() {
        try (InputStream json = Objects.requireNonNull(OptionsTest.class.getResourceAsStream("/options.json"))) {
            return Fields.of("options.json", JSON.std.mapFrom(json));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }
}
