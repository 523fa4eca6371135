package io.kvmessenger.connector;

import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.Set;

/** Selects and opens the transfer engine of a messenger. */
final class TransferWiring {
    /** System property: the class of a {@link TransferDecorator}; none in production. */
    static final String DECORATOR_PROPERTY = "kvmessenger.transferDecorator";

    /** System property: the jar that contains the class, if it is not on the class path. */
    static final String DECORATOR_JAR_PROPERTY = "kvmessenger.transferDecoratorJar";

    private static final int REQUESTS_PER_PEER_MAX = 1024;

    private TransferWiring() {}

    /** @param contextAddresses {@link SubjectRequest#contextAddresses} */
    static TransferEngine open(RuntimeOptions options, Set<Long> contextAddresses) {
        int coreCount = Runtime.getRuntime().availableProcessors();
        int workers = options.transferWorkers();
        TransferEngine engine = TransferEngines.open(new TransferOptions(
                options.listenHost(),
                options.advertiseHost(),
                options.dataHosts(),
                options.dataPort(),
                options.advertiseDataPorts(),
                options.transports(),
                options.streamsPerPeer(),
                REQUESTS_PER_PEER_MAX,
                options.limits().connectLimitNs(),
                // Not before the session would have ended for silence.
                Math.max(TransferOptions.IDLE_LIMIT_NS, options.limits().silenceLimitNs()),
                options.sealsTcp(),
                ThreadingMode.forCores(coreCount),
                workers == 0 ? TransferOptions.workersForCores(coreCount) : workers,
                options.fabric(),
                options.verbsDevices(),
                options.dmaBuf(),
                TransferOptions.CUDA_LIBRARY));
        return decorated(engine, contextAddresses);
    }

    private static TransferEngine decorated(TransferEngine engine, Set<Long> contextAddresses) {
        String name = System.getProperty(DECORATOR_PROPERTY);
        if (name == null) {
            return engine;
        }
        try {
            return decorator(name).decorate(engine, contextAddresses);
        } catch (ReflectiveOperationException | MalformedURLException | RuntimeException e) {
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
