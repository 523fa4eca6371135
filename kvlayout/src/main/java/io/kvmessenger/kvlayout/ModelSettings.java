package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;

/**
 * What decides, besides weights and tokens, which KV an engine computes: each field of the model's configuration and each
 * option of the engine that is not known to be harmless, as short texts. A value.
 *
 * <p>A name that only one side has differs from none on the other. It is not so with names that begin with {@link
 * #BUILT}, which are read from the layers that a side has built: pipeline stages build different ones.
 *
 * <p>{@link #PAGE_FORMAT} names the code that reads and writes pages. Sides that both know what is in them ({@link
 * #PAGE_BYTES}) compare that instead, since kernels of different names may write alike.
 *
 * @param values by name, most informative first; empty when they are not known, as from earlier builds
 * @param mayDiffer names that this side's operator excuses; a name covers those that continue it after a point
 */
public record ModelSettings(Map<String, String> values, Set<String> mayDiffer) {
    public static final ModelSettings UNKNOWN = new ModelSettings(Map.of(), Set.of());
    /** The name of the setting with the model's name. */
    static final String MODEL = "model";
    /** Begins the names of what was read from built layers. */
    public static final String BUILT = "built.";

    static final String PAGE_FORMAT = "page format";
    static final String PAGE_BYTES = BUILT + "page_bytes";
    /** Far above what models and engines have; bounds the cost of malformed input. */
    public static final int COUNT_MAX = 1024;
    /** Of a name or a value. */
    public static final int LENGTH_MAX = 256;

    private static final String NONE = "none";

    public ModelSettings {
        values = Collections.unmodifiableMap(new LinkedHashMap<>(values));
        mayDiffer = Set.copyOf(mayDiffer);
        if (values.size() > COUNT_MAX || mayDiffer.size() > COUNT_MAX) {
            throw new IllegalArgumentException("there are " + values.size() + " settings and " + mayDiffer.size()
                    + " that may differ, expected at most " + COUNT_MAX + " of each");
        }
        Stream.of(values.keySet(), values.values(), mayDiffer)
                .flatMap(Collection::stream)
                .forEach(ModelSettings::requireShort);
    }

    private static void requireShort(String text) {
        if (text.length() > LENGTH_MAX) {
            throw new IllegalArgumentException(
                    "a setting's name or value has " + text.length() + " characters, expected at most " + LENGTH_MAX);
        }
    }

    public boolean known() {
        return !values.isEmpty();
    }

    /** The first setting that prevents two sides from exchanging pages; both know their settings. */
    static Optional<Mismatch> check(ModelSettings source, ModelSettings target) {
        return differences(source, target).stream()
                .filter(found -> !excused(found, source, target))
                .findFirst();
    }

    /** The settings that differ and are excused by both sides. */
    public static List<Mismatch> excused(ModelSettings source, ModelSettings target) {
        return differences(source, target).stream()
                .filter(found -> excused(found, source, target))
                .toList();
    }

    private static boolean excused(Mismatch found, ModelSettings source, ModelSettings target) {
        return source.excuses(found.field()) && target.excuses(found.field());
    }

    private boolean excuses(String name) {
        return mayDiffer.stream().anyMatch(each -> name.equals(each) || name.startsWith(each + "."));
    }

    private static boolean haveSamePageBytes(ModelSettings source, ModelSettings target) {
        String bytes = source.values.get(PAGE_BYTES);
        return bytes != null && bytes.equals(target.values.get(PAGE_BYTES));
    }

    private static List<Mismatch> differences(ModelSettings source, ModelSettings target) {
        List<Mismatch> found = new ArrayList<>();
        if (!source.known() || !target.known()) {
            return found;
        }
        Set<String> names = new LinkedHashSet<>(source.values.keySet());
        names.addAll(target.values.keySet());
        if (!Objects.equals(source.values.get(PAGE_FORMAT), target.values.get(PAGE_FORMAT))) {
            // One of the two is named: that of the format, whose words operators know.
            names.remove(haveSamePageBytes(source, target) ? PAGE_FORMAT : PAGE_BYTES);
        }
        for (String name : names) {
            String from = source.values.get(name);
            String to = target.values.get(name);
            boolean onOneSide = from == null || to == null;
            boolean differs = onOneSide ? !name.startsWith(BUILT) : !from.equals(to);
            if (differs) {
                found.add(Mismatch.ofSetting(name, from == null ? NONE : from, to == null ? NONE : to));
            }
        }
        return found;
    }
}
