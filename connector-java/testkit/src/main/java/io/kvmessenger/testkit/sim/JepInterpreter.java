package io.kvmessenger.testkit.sim;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/**
 * Python inside this JVM, by Jep. Jep is distributed on PyPI with a native library and is in no Maven repository, so it
 * is loaded at run time and called by reflection: the build does not need it.
 *
 * <p>For the thread that opened it. A JVM has one Python: imported modules stay imported, even after {@link #close}.
 */
final class JepInterpreter implements AutoCloseable {
    /** Fixed, so that sets are iterated in the same order in every run: seeds must be replayable. */
    private static final int HASH_SEED = 0;

    private final URLClassLoader classes;
    private final AutoCloseable interpreter;
    private final Method invoke;

    private JepInterpreter(URLClassLoader classes, AutoCloseable interpreter) throws ReflectiveOperationException {
        this.classes = classes;
        this.interpreter = interpreter;
        this.invoke = interpreter.getClass().getMethod("invoke", String.class, Object[].class);
    }

    /**
     * @param jep folder of the installed Python package {@code jep}
     * @param importable folders from which Python imports, before its own
     */
    static JepInterpreter open(Path jep, List<Path> importable) {
        try {
            URLClassLoader classes =
                    new URLClassLoader(new URL[] {jarIn(jep).toUri().toURL()});
            prepareLibrary(classes, jep);
            Class<?> type = classes.loadClass("jep.SharedInterpreter");
            setIncludePaths(classes, type, importable, jep);
            return new JepInterpreter(
                    classes, (AutoCloseable) type.getConstructor().newInstance());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(jep + " holds no Jep that works with this JVM: " + causeOf(e), e);
        }
    }

    private static Path jarIn(Path jep) throws IOException {
        try (Stream<Path> files = Files.list(jep)) {
            return files.filter(file -> file.getFileName().toString().matches("jep-.*\\.jar"))
                    .findFirst()
                    .orElseThrow(() -> new IllegalStateException("there is no jep-*.jar in " + jep));
        }
    }

    private static void prepareLibrary(ClassLoader classes, Path jep) throws ReflectiveOperationException {
        Class<?> main = classes.loadClass("jep.MainInterpreter");
        main.getMethod("setJepLibraryPath", String.class)
                .invoke(null, jep.resolve("libjep.so").toString());
        Class<?> configType = classes.loadClass("jep.PyConfig");
        Object config = configType.getConstructor().newInstance();
        configType.getMethod("setUseHashSeed", boolean.class).invoke(config, true);
        configType.getMethod("setHashSeed", int.class).invoke(config, HASH_SEED);
        configType.getMethod("setWriteBytecode", boolean.class).invoke(config, false);
        main.getMethod("setInitParams", configType).invoke(null, config);
    }

    private static void setIncludePaths(ClassLoader classes, Class<?> type, List<Path> importable, Path jep)
            throws ReflectiveOperationException {
        Class<?> configType = classes.loadClass("jep.JepConfig");
        Object config = configType.getConstructor().newInstance();
        String[] paths = Stream.concat(importable.stream(), Stream.of(jep.getParent()))
                .map(Path::toString)
                .toArray(String[]::new);
        configType.getMethod("addIncludePaths", String[].class).invoke(config, (Object) paths);
        configType.getMethod("setClassLoader", ClassLoader.class).invoke(config, classes);
        type.getMethod("setConfig", configType).invoke(null, config);
    }

    void exec(String statement) {
        try {
            interpreter.getClass().getMethod("exec", String.class).invoke(interpreter, statement);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("Python could not do '" + statement + "': " + causeOf(e), e);
        }
    }

    /** Calls a function of the module {@code __main__}. A Python exception is rethrown with its traceback. */
    Object invoke(String function, Object... arguments) {
        try {
            return invoke.invoke(interpreter, function, arguments);
        } catch (InvocationTargetException e) {
            throw new PythonFault(e.getCause());
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public void close() {
        try {
            interpreter.close();
            classes.close();
        } catch (Exception e) {
            throw new IllegalStateException("Python could not be closed", e);
        }
    }

    private static Throwable causeOf(ReflectiveOperationException fault) {
        return fault.getCause() == null ? fault : fault.getCause();
    }

    /** An exception raised by Python. */
    static final class PythonFault extends RuntimeException {
        private static final long serialVersionUID = 1L;

        PythonFault(Throwable cause) {
            super(cause.getMessage(), cause);
        }
    }
}
