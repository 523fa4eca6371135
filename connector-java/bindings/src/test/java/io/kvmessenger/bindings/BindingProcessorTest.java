package io.kvmessenger.bindings;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What is written for a function, and what is refused. The module foreign shows that it can be called. */
class BindingProcessorTest {
    private static final String ANY = "@NativeLibrary(file = \"libany.so\", failures = NativeLibrary.Failures.ERRNO)";

    @TempDir
    Path folder;

    @Test
    void shouldReturnTheNumberOfAFailure() throws IOException {
        assertThat(written(ANY, "int f(long a, MemorySegment b);"))
                .contains("FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS)")
                .contains("return Downcalls.orErrno((int) f_2.invokeExact(state, a, b), state);");
    }

    @Test
    void shouldCallWhatTheAnnotationNames() throws IOException {
        assertThat(written(ANY, "@C(\"long g(7L, (byte) a, a, 0)\") int f(int a);"))
                .contains("\"g\", FunctionDescriptor.of(ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG,"
                        + " ValueLayout.JAVA_BYTE, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT)")
                .contains("return (int) Downcalls.orErrno((long) f_1.invokeExact(state, 7L, (byte) a, a, 0), state);");
    }

    @Test
    void shouldReturnSomethingElseWhereAnOlderLibraryLacksIt() throws IOException {
        assertThat(written(ANY, "@C(optional = true, otherwise = -38) long f();"))
                .contains("Downcalls.optional(exports, \"f\"")
                .contains("if (f_0 == null) { return -38; }");
    }

    @Test
    void shouldCallThroughATableOfOperations() throws IOException {
        assertThat(written(ANY, "@Operation(table = 8, offset = 16, sized = true) String f(long object);"))
                .contains("fAt.at(Downcalls.sizedOperation(object + 8L, 16L));")
                .contains("if (point.address() == 0) { return \"\"; }")
                .contains("return ForeignMemory.stringAt((long) f_1.invokeExact(point.entry(), object));");
    }

    @Test
    void shouldForwardEachCallWhereAsked() throws IOException {
        written("@NativeLibrary(forwarded = true)", "@C(\"long g(a, 0)\") int f(int a, MemorySegment b); void h();");
        assertThat(Files.readString(folder.resolve("p/ForwardingLib.java")))
                .contains("public int f(int a, MemorySegment b) {\n        return target.f(a, b);")
                .contains("public void h() {\n        target.h();");
    }

    @Test
    void shouldRefuseWhatIsNoCall() throws IOException {
        assertThat(written(ANY, "@C(\"f(a\") int f(int a);")).contains("f: 'f(a' is no call");
        assertThat(written(ANY, "@C(\"f(b)\") int f(int a);")).contains("f: 'b' is neither a parameter nor a literal");
        assertThat(written(ANY, "int f(boolean a);")).contains("f: C has no type for boolean");
    }

    /** The class that is written, or the compiler's messages. */
    private String written(String library, String method) throws IOException {
        String source = "package p; import io.kvmessenger.bindings.*; import java.lang.foreign.MemorySegment; "
                + library + " interface Lib { " + method + " }";
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter messages = new StringWriter();
        JavaCompiler.CompilationTask task = compiler.getTask(
                messages,
                null,
                null,
                List.of("-proc:only", "-s", folder.toString(), "-d", folder.toString()),
                null,
                List.of(new Source(source)));
        task.setProcessors(List.of(new BindingProcessor()));
        boolean complete = task.call(); // false also where the class needs what is not here
        Path file = folder.resolve("p/FfmLib.java");
        return complete || Files.exists(file) ? Files.readString(file) : messages.toString();
    }

    private static final class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String text) {
            super(URI.create("string:///p/Lib.java"), JavaFileObject.Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignoreEncodingErrors) {
            return text;
        }
    }
}
