package io.kvmessenger.testkit.sim;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.weights.WeightReceiver;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.ToolProvider;

/**
 * The production classes of weights with a change in their source, and a simulation that runs them: compiled into a
 * folder, and loaded by a class loader of their own.
 */
final class MutatedWeights extends URLClassLoader {
    private static final Path SOURCES = Path.of("..", "weights", "src", "main", "java", "io", "kvmessenger", "weights");
    private static final List<String> OWN = List.of("io.kvmessenger.weights.", "io.kvmessenger.testkit.sim.");

    private MutatedWeights(URL[] urls) {
        super(urls, MutatedWeights.class.getClassLoader());
    }

    /** Runs seeds with the change. */
    static LongFunction<String> runs(WeightsMutant mutant, Path folder)
            throws IOException, ReflectiveOperationException {
        Path changed = Files.createDirectories(folder.resolve("source"));
        List<String> files = new ArrayList<>();
        for (WeightsMutant.Change change : mutant.changes()) {
            Path file = changed.resolve(change.file() + ".java");
            Path from = Files.exists(file) ? file : SOURCES.resolve(change.file() + ".java");
            Files.writeString(file, change.in(Files.readString(from)));
            files.add(file.toString());
        }
        Path classes = Files.createDirectories(folder.resolve("classes"));
        compile(files.stream().distinct().toList(), classes);
        URL[] urls = {
            classes.toUri().toURL(),
            place(WeightReceiver.class),
            place(WeightsSimulation.class),
            place(WeightsRuns.class)
        };
        @SuppressWarnings("unchecked")
        LongFunction<String> runs = (LongFunction<String>) new MutatedWeights(urls)
                .loadClass(WeightsRuns.class.getName())
                .getConstructor(String.class)
                .newInstance(EngineFault.NONE.name());
        return runs;
    }

    private static void compile(List<String> files, Path classes) {
        String classPath = Stream.of(WeightReceiver.class, Messenger.class, TransferEngine.class, ByteString.class)
                .map(MutatedWeights::place)
                .map(url -> Path.of(url.getPath()).toString())
                .collect(Collectors.joining(File.pathSeparator));
        List<String> arguments =
                new ArrayList<>(List.of("-proc:none", "-nowarn", "-d", classes.toString(), "-classpath", classPath));
        arguments.addAll(files);
        ByteArrayOutputStream messages = new ByteArrayOutputStream();
        int status =
                ToolProvider.getSystemJavaCompiler().run(null, messages, messages, arguments.toArray(String[]::new));
        if (status != 0) {
            throw new AssertionError(
                    "the changed source does not compile: " + messages.toString(StandardCharsets.UTF_8));
        }
    }

    private static URL place(Class<?> type) {
        return type.getProtectionDomain().getCodeSource().getLocation();
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
        if (OWN.stream().noneMatch(name::startsWith)) {
            return super.loadClass(name, resolve);
        }
        synchronized (getClassLoadingLock(name)) {
            Class<?> loaded = findLoadedClass(name);
            return loaded == null ? findClass(name) : loaded;
        }
    }
}
