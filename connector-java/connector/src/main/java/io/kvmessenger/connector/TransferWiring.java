package io.kvmessenger.connector;

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
import java.util.stream.Collectors;

/** Selects and opens the transfer engine of a messenger. */
final class TransferWiring {
    /** System property: the class of a {@link TransferDecorator}; none in production. */
    static final String DECORATOR_PROPERTY = "kvmessenger.transferDecorator";

    /** System property: the jar that contains the class, if it is not on the class path. */
    static final String DECORATOR_JAR_PROPERTY = "kvmessenger.transferDecoratorJar";

    private static final int REQUESTS_PER_PEER_MAX = 1024;

    private TransferWiring() {}

    static TransferEngine open(OpenRequest request) {
        int coreCount = Runtime.getRuntime().availableProcessors();
        int workers = request.transferWorkers();
        TransferEngine engine = TransferEngines.open(new TransferOptions(
                request.listenHost(),
                request.advertiseHost(),
                request.dataHosts(),
                request.dataPort(),
                request.advertiseDataPorts(),
                request.transports(),
                request.streamsPerPeer(),
                REQUESTS_PER_PEER_MAX,
                request.limits().connectLimitNs(),
                // Not before the session would have ended for silence.
                Math.max(TransferOptions.IDLE_LIMIT_NS, request.limits().silenceLimitNs()),
                request.sealsTcp(),
                ThreadingMode.forCores(coreCount),
                workers == 0 ? TransferOptions.workersForCores(coreCount) : workers,
                request.fabric(),
                request.verbsDevices(),
                request.dmaBuf(),
                TransferOptions.CUDA_LIBRARY));
        return decorated(engine, request);
    }

    private static TransferEngine decorated(TransferEngine engine, OpenRequest request) {
        String name = System.getProperty(DECORATOR_PROPERTY);
        if (name == null) {
            return engine;
        }
        try {
            return decorator(name).decorate(engine, contextAddresses(request));
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

    private static Set<Long> contextAddresses(OpenRequest request) {
        return request.context().stream().map(kind -> kind.memory().address()).collect(Collectors.toSet());
    }
}
