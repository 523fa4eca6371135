package io.kvmessenger.connector;

import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Pattern;

/** Reads the options of a messenger's transfer engine, and opens it. */
final class TransferWiring {
    /** System property: the class of a {@link TransferDecorator}; none in production. */
    static final String DECORATOR_PROPERTY = "kvmessenger.transferDecorator";

    /** System property: the jar that contains the class, if it is not on the class path. */
    static final String DECORATOR_JAR_PROPERTY = "kvmessenger.transferDecoratorJar";

    private static final int REQUESTS_PER_PEER_MAX = 1024;
    private static final Pattern AFTER_UNDERSCORE = Pattern.compile("_([a-z])");

    private TransferWiring() {}

    /**
     * The transfer engine's options among those of a messenger.
     *
     * @param sealTcp whether tcp is encrypted
     */
    static TransferOptions read(Fields given, ProtocolLimits limits, boolean sealTcp) {
        TransferOptions options = TransferOptions.defaults();
        for (TransferOption<?> option : TransferEngines.options()) {
            String name = boundaryName(option);
            if (given.has(name)) {
                options = options.withUntyped(option, given.values().get(name));
            }
        }
        // Not before the session would have ended for silence.
        long idleLimitNs = Math.max(TransferOptions.IDLE_LIMIT_NS.byDefault(), limits.silenceLimitNs());
        return options.with(TransferOptions.REQUESTS_PER_PEER_MAX, REQUESTS_PER_PEER_MAX)
                .with(TransferOptions.CONNECT_LIMIT_NS, limits.connectLimitNs())
                .with(TransferOptions.IDLE_LIMIT_NS, idleLimitNs)
                .with(TransferOptions.SEAL_TCP, sealTcp)
                .with(
                        TransferOptions.THREADING,
                        ThreadingMode.forCores(Runtime.getRuntime().availableProcessors()));
    }

    /** An option's name in docs/boundary.md. */
    private static String boundaryName(TransferOption<?> option) {
        return AFTER_UNDERSCORE
                .matcher(option.name())
                .replaceAll(found -> found.group(1).toUpperCase(Locale.ROOT));
    }

    /** @param contextAddresses {@link SubjectRequest#contextAddresses} */
    static TransferEngine open(TransferOptions options, Set<Long> contextAddresses) {
        TransferEngine engine = TransferEngines.open(options);
        return decorated(engine, contextAddresses);
    }

    private static TransferEngine decorated(TransferEngine engine, Set<Long> contextAddresses) {
        String name = System.getProperty(DECORATOR_PROPERTY);
        if (name == null) {
            return engine;
        }
        try {
            return decorator(name).decorate(engine, contextAddresses);
        } catch (ReflectiveOperationException | MalformedURLException | RuntimeException | Error e) {
            engine.close();
            throw new IllegalArgumentException(
                    "system property " + DECORATOR_PROPERTY + " is " + name
                            + ", expected a class that decorates transfer" + " engines (" + e
                            + "): take it out of jvm_options, it is for tests only",
                    e);
        }
    }

    @SuppressWarnings("resource") // its classes are used until the process ends
    private static TransferDecorator decorator(String name) throws ReflectiveOperationException, MalformedURLException {
        ClassLoader loader = TransferWiring.class.getClassLoader();
        String jar = System.getProperty(DECORATOR_JAR_PROPERTY);
        if (jar != null) {
            loader = new URLClassLoader(new URL[] {Path.of(jar).toUri().toURL()}, loader);
        }
        return Class.forName(name, true, loader)
                .asSubclass(TransferDecorator.class)
                .getDeclaredConstructor()
                .newInstance();
    }
}
