package io.kvmessenger.connector;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

/** Sends signals without a process that sends them, so that microseconds after it was decided the signal is there. */
final class Signals {
    static final int KILL = 9;
    static final int CONTINUE = 18;
    static final int STOP = 19;

    private static final MethodHandle SEND = linked();

    private Signals() {}

    static void send(long processId, int signal) {
        try {
            int failed = (int) SEND.invokeExact((int) processId, signal);
            if (failed != 0) {
                throw new AssertionError("no process " + processId);
            }
        } catch (RuntimeException | Error unchanged) {
            throw unchanged;
        } catch (Throwable impossible) {
            throw new AssertionError(impossible);
        }
    }

    @SuppressWarnings("restricted")
    private static MethodHandle linked() {
        Linker linker = Linker.nativeLinker();
        return linker.downcallHandle(
                linker.defaultLookup().findOrThrow("kill"),
                FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT));
    }
}
