package io.kvmessenger.testkit.transfer;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** The wire between a device of the writer's and one of the target's, by the Ethernet interfaces below them. One thread. */
final class VerbsWire {
    private static final Path DEVICES = Path.of("/sys/class/infiniband");

    private final String writer;
    private final String near;
    private final String far;

    VerbsWire() {
        this(RdmaDevices.deviceOf("writer"), RdmaDevices.deviceOf("target"));
    }

    VerbsWire(String writer, String target) {
        this.writer = writer;
        near = interfaceOf(writer);
        far = interfaceOf(target);
    }

    /** The wire of one of the bed's pairs. */
    static VerbsWire ofPair(int pair) {
        return new VerbsWire(RdmaDevices.deviceOfPair("writer", pair), RdmaDevices.deviceOfPair("target", pair));
    }

    private static String interfaceOf(String device) {
        return read(DEVICES.resolve(device).resolve("parent"));
    }

    private static String read(Path file) {
        try {
            return Files.readString(file).strip();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** What the writer's device has counted. */
    long counted(String what) {
        return Long.parseLong(
                read(DEVICES.resolve(writer).resolve("ports/1/hw_counters").resolve(what)));
    }

    /** What has left the writer's end. */
    long sentBytes() {
        return counted(near, "tx_bytes");
    }

    /** What has come to the target's end. */
    long receivedBytes() {
        return counted(far, "rx_bytes");
    }

    private static long counted(String end, String what) {
        return Long.parseLong(read(Path.of("/sys/class/net", end, "statistics", what)));
    }

    /** Takes the target's end away. */
    void cut() {
        run("ip", "link", "set", far, "down");
    }

    void restore() {
        run("ip", "link", "set", far, "up");
        // What goes to the other end has a route of its own, which went with the interface: examples/setup/rdma-bed.
        String number = far.substring(2);
        run("ip", "route", "replace", "10.77." + number + ".1", "dev", far, "table", "20" + number);
    }

    /** Takes the switch's end of a wire away, by the number of its device there; the device keeps its route. */
    static void unplug(int number) {
        run("ip", "link", "set", "sp" + number, "down");
    }

    static void plug(int number) {
        run("ip", "link", "set", "sp" + number, "up");
    }

    void lose(String percent) {
        run("tc", "qdisc", "replace", "dev", near, "root", "netem", "loss", percent + "%");
    }

    void loseNothing() {
        lose("0");
    }

    private static void run(String... command) {
        try {
            Process process =
                    new ProcessBuilder(command).redirectErrorStream(true).start();
            String given = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (process.waitFor() != 0) {
                throw new AssertionError(String.join(" ", command) + ": " + given);
            }
        } catch (IOException e) {
            throw new AssertionError(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new AssertionError(e);
        }
    }
}
