package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.verbs.VerbsTransport;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Assumptions;

/** The RDMA devices available to tests: those of the test bed, which {@code make test-rdma} starts. Pure functions. */
public final class RdmaDevices {
    /** System property: the names of two connected devices, separated by a comma. */
    private static final String PROPERTY = "kvmessenger.rdma";

    private RdmaDevices() {}

    /** Skips the test if there are none. */
    public static void assume() {
        Assumptions.assumeFalse(
                devices().isEmpty(),
                "no RDMA device: -D" + PROPERTY + " names none, make test-rdma runs where there are");
    }

    /** Assigns engines whose name begins with "target" to one end of the wire, all others to the other end. */
    public static TransferOptions by(TransferOptions options, String engine) {
        return options.withTransports(TransferOptions.VERBS).with(VerbsTransport.DEVICES, List.of(deviceOf(engine)));
    }

    /** Assigns {@code count} devices to each engine, each of the writer's connected to one of the target's. */
    public static TransferOptions byPairs(TransferOptions options, String engine, int count) {
        List<String> devices = IntStream.range(0, count)
                .mapToObj(pair -> deviceOfPair(engine, pair))
                .toList();
        return options.withTransports(TransferOptions.VERBS).with(VerbsTransport.DEVICES, devices);
    }

    /** The device of an engine in one of the bed's pairs, as {@code examples/setup/rdma-bed} names it. */
    public static String deviceOfPair(String engine, int pair) {
        return (engine.startsWith("target") ? "rxp" : "rxe") + pair;
    }

    /** Assigns {@code count} devices of the bed's switch, from one number on. */
    public static TransferOptions bySwitched(TransferOptions options, int first, int count) {
        List<String> devices =
                IntStream.range(first, first + count).mapToObj(i -> "rxs" + i).toList();
        return options.withTransports(TransferOptions.VERBS).with(VerbsTransport.DEVICES, devices);
    }

    public static String deviceOf(String engine) {
        int comma = devices().indexOf(',');
        return engine.startsWith("target")
                ? devices().substring(comma + 1)
                : devices().substring(0, comma);
    }

    /** Arguments that give the same devices to a JVM that a test starts. */
    public static List<String> arguments() {
        return devices().isEmpty() ? List.of() : List.of("-D" + PROPERTY + "=" + devices());
    }

    private static String devices() {
        return System.getProperty(PROPERTY, "");
    }
}
