package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.Assumptions;

/** The RDMA devices that tests may use: those of the test bed, which {@code make test-rdma} starts. Pure functions. */
final class RdmaDevices {
    /** System property: two devices with a wire between them, with a comma between them. */
    private static final String PROPERTY = "kvmessenger.rdma";

    private RdmaDevices() {}

    /** Skips the test where there is none. */
    static void assume() {
        Assumptions.assumeFalse(
                devices().isEmpty(),
                "no RDMA device: -D" + PROPERTY + " names none, make test-rdma runs where there are");
    }

    /** Engines of a name that begins with "target" at one end of the wire, all others at the other one. */
    static TransferOptions by(TransferOptions options, String engine) {
        return options.withTransports(TransferOptions.VERBS).withVerbsDevice(deviceOf(engine));
    }

    static String deviceOf(String engine) {
        int comma = devices().indexOf(',');
        return engine.startsWith("target")
                ? devices().substring(comma + 1)
                : devices().substring(0, comma);
    }

    private static String devices() {
        return System.getProperty(PROPERTY, "");
    }
}
