package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Assumptions;

/** The RDMA devices that tests may use: those of the test bed, which {@code make test-rdma} starts. Pure functions. */
public final class RdmaDevices {
    /** System property: two devices with a wire between them, with a comma between them. */
    private static final String PROPERTY = "kvmessenger.rdma";

    private RdmaDevices() {}

    /** Skips the test where there is none. */
    public static void assume() {
        Assumptions.assumeFalse(
                devices().isEmpty(),
                "no RDMA device: -D" + PROPERTY + " names none, make test-rdma runs where there are");
    }

    /** Engines of a name that begins with "target" at one end of the wire, all others at the other one. */
    public static TransferOptions by(TransferOptions options, String engine) {
        return options.withTransports(TransferOptions.VERBS).withVerbsDevices(deviceOf(engine));
    }

    /** Engines with so many devices each: every one of the writer's at the other end of a wire from one of the target's. */
    public static TransferOptions byPairs(TransferOptions options, String engine, int count) {
        String[] devices = IntStream.range(0, count)
                .mapToObj(pair -> deviceOfPair(engine, pair))
                .toArray(String[]::new);
        return options.withTransports(TransferOptions.VERBS).withVerbsDevices(devices);
    }

    /** The device of an engine at one of the bed's pairs, as {@code examples/setup/rdma-bed} calls it. */
    public static String deviceOfPair(String engine, int pair) {
        return (engine.startsWith("target") ? "rxp" : "rxe") + pair;
    }

    /** Those of the bed's switch from one number on, so many. */
    public static TransferOptions bySwitched(TransferOptions options, int first, int count) {
        String[] devices =
                IntStream.range(first, first + count).mapToObj(i -> "rxs" + i).toArray(String[]::new);
        return options.withTransports(TransferOptions.VERBS).withVerbsDevices(devices);
    }

    public static String deviceOf(String engine) {
        int comma = devices().indexOf(',');
        return engine.startsWith("target")
                ? devices().substring(comma + 1)
                : devices().substring(0, comma);
    }

    /** By which a JVM that a test starts has the same devices. */
    public static List<String> arguments() {
        return devices().isEmpty() ? List.of() : List.of("-D" + PROPERTY + "=" + devices());
    }

    private static String devices() {
        return System.getProperty(PROPERTY, "");
    }
}
