package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * Generates the workload for a class cache: one fetch between two messengers on loopback, so that the cache contains
 * the classes that a boot and a first fetch load.
 *
 * <p>A process of its own, started by the launcher; never used in an engine. Its exit status is an error if the fetch
 * does not arrive.
 */
public final class AotTraining {
    private static final long FETCH_LIMIT_NS = TimeUnit.SECONDS.toNanos(60);
    private static final long POLL_PERIOD_NS = TimeUnit.MILLISECONDS.toNanos(1);
    private static final int POLL_CAPACITY_BYTES = 1 << 16;
    private static final int MEMORY_LENGTH_BYTES = 4096;

    private static final String STEP = """
        {"commands":[{"do":"step","step":1,"counterStart":0,"chunks":[{"request":"p","transfer":"t","promptTokens":16,
        "cachedTokens":0,"firstToken":0,"endToken":16,"groups":[{"firstPage":0,"pages":[0]}]}]}]}
        """;
    private static final String STEP_ENDED = """
        {"commands":[{"do":"stepEnded","step":1,"counterEnd":0},{"do":"prefillEnded","request":"p","outcome":"finished"}]}
        """;

    private AotTraining() {}

    /** Arguments: the transports to use, one fetch for each; tcp if there are none. */
    public static void main(String[] args) {
        if (Boot.boot() == 0) {
            throw new IllegalStateException("boot gave no table");
        }
        for (String transport : args.length == 0 ? new String[] {"tcp"} : args) {
            fetchOnce(transport);
        }
    }

    private static void fetchOnce(String transport) {
        MessengerHost host = new MessengerHost();
        try (Arena arena = Arena.ofShared()) {
            MemorySegment source = arena.allocate(MEMORY_LENGTH_BYTES, MEMORY_LENGTH_BYTES);
            MemorySegment target = arena.allocate(MEMORY_LENGTH_BYTES, MEMORY_LENGTH_BYTES);
            OpenResult prefiller = host.open(open("prefiller", transport, source.address()));
            OpenResult decoder = host.open(open("decoder", transport, target.address()));
            host.submit(decoder.handle(), fetch(prefiller));
            host.submit(prefiller.handle(), utf8(STEP));
            ForeignMemory.at(prefiller.layerCounterAddress(), Long.BYTES).set(ValueLayout.JAVA_LONG, 0, 1);
            host.submit(prefiller.handle(), utf8(STEP_ENDED));
            await(host, decoder, "arrived");
            await(host, prefiller, "released");
            host.stats(decoder.handle());
            host.leakCheck(decoder.handle());
            host.close(decoder.handle());
            host.close(prefiller.handle());
        }
    }

    private static byte[] open(String role, String transport, long address) {
        return utf8("""
            {"options":{"role":"%s","engineId":"training-%1$s","listenHost":"127.0.0.1","listenPort":0,"advertiseHost":"",
            "metricsHost":"127.0.0.1","metricsPort":0,"sharedSecret":"training","transports":["%s"],"streamsPerPeer":1,
            "grantWaitMillis":60000,"fetchLimitMillis":60000,"connectLimitMillis":60000,"heartbeatMillis":1000,
            "silenceLimitMillis":60000,"pageChecksum":"full","engineApiUrl":"","timelines":"full"},
            "subject":{"kind":"kv_cache","geometry":{"model":"training","tpSize":1,"ppSize":1,
            "groups":[{"kind":"full","windowTokens":0,"dtype":"float32","elementBytes":4,"pageTokens":16,"layout":"HND",
            "kvHeadCount":1,"pageCount":2}],"ranks":[{"tpRank":0,"ppRank":0,
            "memories":[{"address":%d,"lengthBytes":4096,"memfd":-1}],
            "layers":[{"name":"0","groupIndex":0,"memoryIndex":0,"offsetBytes":0,"pageStrideBytes":2048,"pageBytes":2048}]}]},
            "layerCounterLag":0}}
            """.formatted(role, transport, address));
    }

    private static byte[] fetch(OpenResult prefiller) {
        return utf8("""
            {"commands":[{"do":"fetch","request":"d","transfer":"t","prefillers":[{"host":"%s","port":%d,
            "engineId":"%s"}],"promptTokens":16,"firstToken":0,"groups":[{"pages":[1]}],"limitMillis":0}]}
            """.formatted(prefiller.controlHost(), prefiller.controlPort(), prefiller.engineId()));
    }

    private static void await(MessengerHost host, OpenResult opened, String event) {
        long startNs = System.nanoTime();
        StringBuilder events = new StringBuilder();
        while (events.indexOf("\"" + event + "\"") < 0) {
            if (System.nanoTime() - startNs > FETCH_LIMIT_NS) {
                throw new IllegalStateException("no " + event + " came: " + events);
            }
            LockSupport.parkNanos(POLL_PERIOD_NS);
            events.append(new String(host.poll(opened.handle(), POLL_CAPACITY_BYTES), StandardCharsets.UTF_8));
        }
    }

    private static byte[] utf8(String json) {
        return json.getBytes(StandardCharsets.UTF_8);
    }
}
