package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** Asks the C compiler for the values of terms. Pure functions. */
final class CompilerProbe {
    private CompilerProbe() {}

    /** @param expected by the term in C; all of them are compared */
    static void assertAgrees(Path folder, String headers, String includes, Map<String, Long> expected)
            throws IOException, InterruptedException {
        StringBuilder source = new StringBuilder(includes).append("int main(void) {\n");
        expected.keySet()
                .forEach(term -> source.append("printf(\"%lld\\n\", (long long)(")
                        .append(term)
                        .append("));\n"));
        Path file = folder.resolve("probe.c");
        Files.writeString(file, source.append("}\n"));
        String probe = folder.resolve("probe").toString();
        assertThat(LayoutProbeTest.run("cc", "-I" + headers, "-o", probe, file.toString()))
                .isNotNull();
        var seen = LayoutProbeTest.run(probe).lines().iterator();
        for (var entry : expected.entrySet()) {
            assertThat(Long.parseLong(seen.next())).as(entry.getKey()).isEqualTo(entry.getValue());
        }
    }
}
