package io.kvmessenger.bindings;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.lang.model.element.ExecutableElement;
import javax.lang.model.element.VariableElement;

/** A method of an interface as the call of its C function. Immutable. */
final class NativeFunction {
    private static final Pattern CALL = Pattern.compile("(?:(\\w+) )?(\\w+)\\((.*)\\)");
    private static final Pattern CAST = Pattern.compile("\\((byte|int|long)\\) (.+)");
    private static final Pattern LITERAL = Pattern.compile("-?\\d+(L?)");

    final String method;
    /** The Java types of the method. */
    final String returns;

    final List<String> parameters;
    final List<String> parameterNames;
    final String symbol;
    /** The Java type of what C returns; a text is a pointer. */
    final String result;

    final List<String> arguments = new ArrayList<>();
    /** Expressions of the arguments' layouts. */
    final List<String> layouts = new ArrayList<>();

    final Optional<C> c;
    final Optional<Operation> operation;

    /** @throws IllegalArgumentException saying what cannot be called */
    NativeFunction(ExecutableElement element) {
        method = element.getSimpleName().toString();
        returns = simpleName(element.getReturnType().toString());
        c = Optional.ofNullable(element.getAnnotation(C.class));
        operation = Optional.ofNullable(element.getAnnotation(Operation.class));
        Map<String, VariableElement> byName = new HashMap<>();
        List<String> declared = new ArrayList<>();
        for (VariableElement parameter : element.getParameters()) {
            byName.put(parameter.getSimpleName().toString(), parameter);
            declared.add(simpleName(parameter.asType().toString()) + " " + parameter.getSimpleName());
        }
        parameters = List.copyOf(declared);
        parameterNames = element.getParameters().stream()
                .map(parameter -> parameter.getSimpleName().toString())
                .toList();
        String call = c.map(C::value)
                .filter(text -> !text.isEmpty())
                .orElseGet(() -> method + "(" + String.join(", ", parameterNames) + ")");
        Matcher parsed = CALL.matcher(call);
        if (!parsed.matches()) {
            throw new IllegalArgumentException(method + ": '" + call + "' is no call");
        }
        result = parsed.group(1) != null ? parsed.group(1) : returns.equals("String") ? "long" : returns;
        symbol = parsed.group(2);
        for (String argument :
                parsed.group(3).isEmpty() ? new String[0] : parsed.group(3).split(", ")) {
            arguments.add(argument);
            layouts.add(layoutOf(argument, byName));
        }
    }

    private String layoutOf(String argument, Map<String, VariableElement> byName) {
        Matcher cast = CAST.matcher(argument);
        if (cast.matches()) {
            return layout(cast.group(1));
        }
        Matcher literal = LITERAL.matcher(argument);
        if (literal.matches()) {
            return layout(literal.group(1).isEmpty() ? "int" : "long");
        }
        VariableElement parameter = byName.get(argument);
        if (parameter == null) {
            throw new IllegalArgumentException(method + ": '" + argument + "' is neither a parameter nor a literal");
        }
        ByValue byValue = parameter.getAnnotation(ByValue.class);
        return byValue != null
                ? "Downcalls.struct(" + byValue.value() + "L)"
                : layout(simpleName(parameter.asType().toString()));
    }

    /** The expression of the function's descriptor. */
    String descriptor() {
        List<String> all = new ArrayList<>(layouts);
        if (!result.equals("void")) {
            all.addFirst(layout(result));
        }
        return (result.equals("void") ? "FunctionDescriptor.ofVoid(" : "FunctionDescriptor.of(")
                + String.join(", ", all) + ")";
    }

    private String layout(String javaType) {
        return switch (javaType) {
            case "byte" -> "ValueLayout.JAVA_BYTE";
            case "int" -> "ValueLayout.JAVA_INT";
            case "long" -> "ValueLayout.JAVA_LONG";
            case "MemorySegment" -> "ValueLayout.ADDRESS";
            default -> throw new IllegalArgumentException(method + ": C has no type for " + javaType);
        };
    }

    private static String simpleName(String type) {
        String bare = type.substring(type.lastIndexOf(' ') + 1); // annotations come first
        return bare.substring(bare.lastIndexOf('.') + 1);
    }
}
