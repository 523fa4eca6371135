package io.kvmessenger.connector;

import io.kvmessenger.testkit.transfer.RdmaDevices;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The test's end of a {@link ShardedEngine} in a process of its own. A process that has closed its engine in good order
 * serves another one later: starting a JVM costs more than what most tests do with it.
 *
 * <p>Used by the test's thread alone.
 */
final class ShardedProcess {
    private static final Deque<ShardedProcess> IDLE = new ArrayDeque<>();

    private final Process process;
    private final BufferedReader output;
    private String address = "";

    private ShardedProcess() throws IOException {
        process = TestJvm.start(RdmaDevices.arguments(), ShardedEngine.class);
        output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** An engine in a process that no other engine is in. Its messenger opens meanwhile. */
    static ShardedProcess open(String role, String transport, ShardedShape shape) throws IOException {
        ShardedProcess free = IDLE.isEmpty() ? new ShardedProcess() : IDLE.pop();
        free.address = "";
        free.report("open " + role + " " + transport + " " + String.join(" ", shape.words()));
        return free;
    }

    /** Ends the processes that wait for another engine. */
    static void endIdle() {
        IDLE.forEach(ShardedProcess::end);
        IDLE.clear();
    }

    /** Where its messenger listens; waits until it does. */
    String address() {
        if (address.isEmpty()) {
            address = answer();
        }
        return address;
    }

    void report(String line) throws IOException {
        process.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
        process.getOutputStream().flush();
    }

    String answer() {
        try {
            String line = output.readLine();
            if (line == null) {
                throw new AssertionError("the process of " + address + " has ended");
            }
            return line;
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** Closes the engines of all of them at once; a process is used again when that went well. */
    static void closeAll(List<ShardedProcess> processes) {
        processes.forEach(ShardedProcess::beginClose);
        processes.forEach(ShardedProcess::close);
    }

    private void beginClose() {
        try {
            report("close");
        } catch (IOException e) {
            end(); // which ends its output too: close() says so
        }
    }

    /** Waits for an engine that was told to close. */
    private void close() {
        try {
            for (String line = answer(); !line.equals("closed"); line = answer()) {
                // what a test that failed did not wait for
            }
            IDLE.push(this);
        } catch (AssertionError e) {
            end();
            throw new AssertionError("the engine at " + address + " does not close", e);
        }
    }

    /** Closes its input, which ends it in good order. */
    private void end() {
        try {
            process.getOutputStream().close();
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException | InterruptedException e) {
            process.destroyForcibly();
        }
    }
}
