package io.kvmessenger.bindings;

import io.kvmessenger.bindings.NativeLibrary.Failures;
import java.util.List;

/**
 * Writes the class that calls the functions of an interface. What it needs at run time is {@code Downcalls},
 * {@code LoadedLibrary} and {@code ForeignMemory} of the interface's package. Each of its texts is written once.
 */
final class BindingWriter {
    private static final List<String> NUMBERS = List.of("int", "long");

    private final StringBuilder text = new StringBuilder();
    private final String packageName;
    private final String interfaceName;
    private final NativeLibrary library;
    private final List<NativeFunction> functions;

    BindingWriter(String packageName, String interfaceName, NativeLibrary library, List<NativeFunction> functions) {
        this.packageName = packageName;
        this.interfaceName = interfaceName;
        this.library = library;
        this.functions = functions;
    }

    static String className(String interfaceName) {
        return "Ffm" + interfaceName;
    }

    static String forwardingName(String interfaceName) {
        return "Forwarding" + interfaceName;
    }

    /** The class that calls the functions. */
    String calls() {
        String name = className(interfaceName);
        head("/** The functions of {@link " + interfaceName + "}, by downcalls. */", "public final class " + name);
        if (library.file().isEmpty()) {
            handlesOfProcess();
        } else {
            handlesOfFile(name);
        }
        functions.forEach(this::method);
        line(0, "}");
        return text.toString();
    }

    /** The class that passes each call on. */
    String forwards() {
        String name = forwardingName(interfaceName);
        head(
                "/** Passes each call on; subclasses override some. Threading as the target's. */",
                "public abstract class " + name);
        line(1, "private final " + interfaceName + " target;");
        line(1, "protected " + name + "(" + interfaceName + " target) { this.target = target; }");
        for (NativeFunction function : functions) {
            String call = "target." + function.method + "(" + String.join(", ", function.parameterNames) + ");";
            signature(function);
            line(2, (function.returns.equals("void") ? "" : "return ") + call);
            line(1, "}");
        }
        line(0, "}");
        return text.toString();
    }

    private void head(String comment, String declared) {
        line(0, "package " + packageName + ";");
        for (String type : List.of(
                "foreign.FunctionDescriptor", "foreign.MemorySegment", "foreign.ValueLayout", "invoke.MethodHandle")) {
            line(0, "import java.lang." + type + ";");
        }
        line(0, "import java.util.function.Function;");
        line(0, "import javax.annotation.processing.Generated;");
        line(0, comment);
        line(0, "@Generated(\"" + BindingProcessor.class.getName() + "\")");
        line(0, declared + " implements " + interfaceName + " {");
    }

    private void signature(NativeFunction function) {
        String parameters = String.join(", ", function.parameters);
        line(1, "@Override");
        line(1, "public " + function.returns + " " + function.method + "(" + parameters + ") {");
    }

    /** A function that the process lacks fails when it is called. */
    private void handlesOfProcess() {
        for (NativeFunction function : functions) {
            line(
                    1,
                    "private static final MethodHandle " + handle(function) + " = Downcalls.ofProcess(\""
                            + function.symbol + "\", " + function.descriptor() + options(function) + ");");
        }
    }

    private void handlesOfFile(String name) {
        line(1, "/** The name by which the loader finds the library. */");
        line(1, "public static final String DEFAULT_NAME = \"" + library.file() + "\";");
        for (NativeFunction function : functions) {
            if (function.operation.isPresent()) {
                line(
                        1,
                        "private static final MethodHandle " + handle(function) + " = Downcalls.ofPointer("
                                + function.descriptor() + ");");
                line(1, "private Downcalls.Pointer " + function.method + "At = Downcalls.Pointer.NULL;");
            } else {
                line(1, "private final MethodHandle " + handle(function) + ";");
            }
        }
        line(1, "/**");
        line(1, " * Loads the library; it stays loaded until the process ends.");
        line(1, " *");
        line(1, " * @param name its path, or a name for the loader");
        line(1, " * @throws UnsatisfiedLinkError saying in one line why it cannot be");
        line(1, " */");
        line(1, "public " + name + "(String name) {");
        line(2, "this(LoadedLibrary.load(name, \"" + library.environment() + "\")::find);");
        line(1, "}");
        line(1, "/** Uses the exported functions that {@code exports} finds by name, from any source. */");
        line(1, "public " + name + "(Function<String, MemorySegment> exports) {");
        for (NativeFunction function : functions) {
            if (function.operation.isEmpty()) {
                String of = function.c.filter(C::optional).isPresent() ? "Downcalls.optional(" : "Downcalls.of(";
                line(
                        2,
                        handle(function) + " = " + of + "exports, \"" + function.symbol + "\", " + function.descriptor()
                                + options(function) + ");");
            }
        }
        line(1, "}");
    }

    private void method(NativeFunction function) {
        signature(function);
        function.operation.ifPresent(operation -> lookUp(function, operation));
        function.c
                .filter(C::optional)
                .ifPresent(c -> line(2, "if (" + handle(function) + " == null) { return " + c.otherwise() + "; }"));
        if (capturesErrno(function)) {
            line(2, "MemorySegment state = Downcalls.callState();");
        }
        line(2, "try {");
        line(3, returned(function) + ";");
        line(2, "} catch (Throwable t) {");
        line(3, "throw Downcalls.unexpected(t);");
        line(2, "}");
        line(1, "}");
    }

    private void lookUp(NativeFunction function, Operation operation) {
        String at = function.method + "At";
        line(
                2,
                "Downcalls.Pointer point = " + at + ".at(Downcalls."
                        + (operation.sized() ? "sizedOperation(" : "operation(")
                        + function.arguments.getFirst() + " + " + operation.table() + "L, " + operation.offset()
                        + "L));");
        line(2, at + " = point;");
        if (operation.sized()) {
            String absent = function.returns.equals("String") ? "\"\"" : "-Errno.ENOSYS";
            line(2, "if (point.address() == 0) { return " + absent + "; }");
        }
    }

    /** The statement that calls it and returns what the method returns. */
    private String returned(NativeFunction function) {
        StringBuilder arguments = new StringBuilder();
        if (function.operation.isPresent()) {
            arguments.append("point.entry(), ");
        } else if (capturesErrno(function)) {
            arguments.append("state, ");
        }
        arguments.append(String.join(", ", function.arguments));
        String bare = arguments.toString().endsWith(", ")
                ? arguments.substring(0, arguments.length() - 2)
                : arguments.toString();
        String call = handle(function) + ".invokeExact(" + bare + ")";
        if (function.result.equals("void")) {
            return call;
        }
        call = "(" + function.result + ") " + call;
        if (capturesErrno(function)) {
            call = "Downcalls." + (library.failures() == Failures.ERRNO ? "orErrno" : "orErrnoOrNumber") + "(" + call
                    + ", state)";
        } else if (function.operation.filter(Operation::negated).isPresent()) {
            call = "-" + call;
        }
        if (function.returns.equals("String")) {
            return "return ForeignMemory.stringAt(" + call + ")";
        }
        return "return " + (function.returns.equals(function.result) ? "" : "(" + function.returns + ") ") + call;
    }

    private boolean capturesErrno(NativeFunction function) {
        return library.failures() != Failures.AS_RETURNED
                && function.operation.isEmpty()
                && NUMBERS.contains(function.returns);
    }

    private String options(NativeFunction function) {
        int variadicAfter = function.c.map(C::variadicAfter).orElse(0);
        return (capturesErrno(function) ? ", Downcalls.ERRNO" : "")
                + (variadicAfter > 0 ? ", Downcalls.variadic(" + variadicAfter + ")" : "");
    }

    /** Overloads differ by the number of their arguments. */
    private static String handle(NativeFunction function) {
        return function.method + "_" + function.parameters.size();
    }

    private void line(int depth, String content) {
        text.append("    ".repeat(depth)).append(content).append('\n');
    }
}
