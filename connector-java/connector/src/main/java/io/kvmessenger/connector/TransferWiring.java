package io.kvmessenger.connector;

import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.transfer.FabricChoice;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferDecorator;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/** Reads the options of a messenger's transfer engine, and opens it. */
final class TransferWiring {
    /** System property: the class of a {@link TransferDecorator}; none in production. */
    static final String DECORATOR_PROPERTY = "kvmessenger.transferDecorator";

    /** System property: the jar that contains the class, if it is not on the class path. */
    static final String DECORATOR_JAR_PROPERTY = "kvmessenger.transferDecoratorJar";

    private static final int REQUESTS_PER_PEER_MAX = 1024;

    private TransferWiring() {}

    /**
     * The transfer engine's options among those of a messenger.
     *
     * @param sealTcp whether tcp is encrypted
     */
    static TransferOptions read(Fields options, ProtocolLimits limits, boolean sealTcp) {
        int coreCount = Runtime.getRuntime().availableProcessors();
        int workers = options.countIfGiven("transferWorkers");
        return TransferOptions.defaults()
                .withHosts(options.text("listenHost"), options.text("advertiseHost"))
                .withDataHosts(options.textsIfGiven("dataHosts"))
                .withDataPort(options.countIfGiven("dataPort"))
                .withAdvertiseDataPorts(ports(options))
                .withTransports(options.texts("transports").toArray(String[]::new))
                .withStreamsPerPeer(options.count("streamsPerPeer"))
                .withRequestsPerPeerMax(REQUESTS_PER_PEER_MAX)
                .withConnectLimitNs(limits.connectLimitNs())
                // Not before the session would have ended for silence.
                .withIdleLimitNs(Math.max(TransferOptions.IDLE_LIMIT_NS, limits.silenceLimitNs()))
                .withSealTcp(sealTcp)
                .withThreading(ThreadingMode.forCores(coreCount))
                .withWorkers(workers == 0 ? TransferOptions.workersForCores(coreCount) : workers)
                .withFabric(new FabricChoice(
                        options.textIfGiven("libfabricLibrary"), options.textIfGiven("libfabricProvider")))
                .withVerbsDevices(options.textsIfGiven("verbsDevices").toArray(String[]::new))
                .withDmaBuf(!options.has("dmaBuf") || options.flagIfGiven("dmaBuf"));
    }

    private static List<Integer> ports(Fields options) {
        return options.has("advertiseDataPorts")
                ? Arrays.stream(options.counts("advertiseDataPorts")).boxed().toList()
                : List.of();
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
