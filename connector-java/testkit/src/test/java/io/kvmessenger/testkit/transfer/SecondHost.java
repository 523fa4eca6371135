package io.kvmessenger.testkit.transfer;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** A second host on this machine: a network namespace with one link to it, which can be cut and can lose packets. One thread. */
final class SecondHost implements AutoCloseable {
    private static final String SUBNET = "10.212.";
    private static final int SUBNETS = 250;

    /** The kernel takes a deleted namespace down some time later, with what is in it: so names are not used twice. */
    private static final AtomicInteger COUNT = new AtomicInteger();

    private final long number = ProcessHandle.current().pid() * 8 + COUNT.getAndIncrement();
    private final String name = "kvm-wire-" + number;
    private final String device = "kvw" + number;
    private final String network = SUBNET + number % SUBNETS + ".";

    /** @throws IllegalStateException saying why none can be made here */
    SecondHost() {
        run("ip", "netns", "add", name);
        try {
            run("ip", "-n", name, "link", "set", "lo", "up");
            run("ip", "link", "add", device, "type", "veth", "peer", "name", "wire", "netns", name);
            run("ip", "addr", "add", near() + "/30", "dev", device);
            run("ip", "link", "set", device, "up");
            run("ip", "-n", name, "addr", "add", far() + "/30", "dev", "wire");
            run("ip", "-n", name, "link", "set", "wire", "up");
        } catch (IllegalStateException e) {
            close();
            throw e;
        }
    }

    /** This host's end of the link. */
    String near() {
        return network + "1";
    }

    String far() {
        return network + "2";
    }

    /** The command, as it is run there. */
    List<String> there(List<String> command) {
        List<String> all = new ArrayList<>(List.of("ip", "netns", "exec", name));
        all.addAll(command);
        return all;
    }

    void linkDown() {
        run("ip", "link", "set", device, "down");
    }

    void linkUp() {
        run("ip", "link", "set", device, "up");
    }

    /**
     * From now on the link carries little, and drops what its small buffer cannot hold.
     *
     * @throws IllegalStateException saying why that cannot be had here
     */
    void dropWhatDoesNotFit() {
        run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "400mbit", "burst", "64kb", "limit", "64kb");
    }

    /** Packets that were dropped so. */
    long droppedCount() {
        String given = run("tc", "-s", "qdisc", "show", "dev", device);
        return Long.parseLong(given.replaceAll("(?s).*dropped (\\d+),.*", "$1"));
    }

    @Override
    public void close() {
        // Its end of the link goes with it, and ours with that.
        run("ip", "netns", "delete", name);
    }

    private static String run(String... command) {
        return run(List.of(command));
    }

    private static String run(List<String> command) {
        try {
            Process process =
                    new ProcessBuilder(command).redirectErrorStream(true).start();
            String given = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
            if (process.waitFor() != 0) {
                throw new IllegalStateException(String.join(" ", command) + ": " + given);
            }
            return given;
        } catch (IOException e) {
            throw new IllegalStateException("a second host needs the program " + command.getFirst(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new UncheckedIOException(new IOException(e));
        }
    }
}
