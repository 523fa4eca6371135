package io.kvmessenger.testkit.device;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.NoDeviceException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;

/**
 * The stand-in for NVIDIA's driver, and what only a test may ask of it. One in a process: its faults, delays and counts are the
 * process's.
 *
 * <p>Any thread.
 */
public final class StandInCuda {
    private static final String HOME = System.getProperty("kvmessenger.cuda-stand-in", "");

    private final MethodHandle callCount;
    private final MethodHandle fail;
    private final MethodHandle held;
    private final MethodHandle bytes;
    private final MethodHandle delay;
    private final MethodHandle pageableCopies;
    private final MethodHandle retained;
    private final MethodHandle lie;
    private final MethodHandle runsCopied;
    private final MethodHandle dropTails;
    private final MethodHandle forget;
    private final MethodHandle attribute;
    private final MethodHandle nicRegister;
    private final MethodHandle nicDeregister;
    private final MethodHandle nicRead;
    private final MethodHandle nicWrite;

    private StandInCuda(SymbolLookup library) {
        callCount = function(library, "standInCallCount", JAVA_LONG, ADDRESS);
        fail = procedure(library, "standInFail", ADDRESS, JAVA_LONG, JAVA_INT);
        held = function(library, "standInHeld", JAVA_LONG);
        bytes = function(library, "standInBytes", JAVA_LONG, JAVA_LONG, JAVA_LONG);
        delay = procedure(library, "standInDelay", JAVA_LONG);
        lie = procedure(library, "standInLie", JAVA_INT);
        runsCopied = function(library, "standInRunsCopied", JAVA_LONG);
        dropTails = procedure(library, "standInDropTails", JAVA_LONG);
        forget = procedure(library, "standInForget");
        pageableCopies = function(library, "standInPageableCopies", JAVA_LONG);
        retained = function(library, "standInRetained", JAVA_INT, JAVA_INT);
        attribute = procedure(library, "standInAttribute", JAVA_INT, JAVA_INT);
        nicRegister = function(library, "standInNicRegister", JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_LONG);
        nicDeregister = procedure(library, "standInNicDeregister", JAVA_LONG);
        nicRead = function(library, "standInNicRead", JAVA_INT, JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG);
        nicWrite = function(library, "standInNicWrite", JAVA_INT, JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG);
    }

    /** Its path. @throws TestAbortedException where this machine has none */
    public static String library() {
        assumeTrue(
                !HOME.isEmpty(),
                "no stand-in for NVIDIA's driver: -Dkvmessenger.cuda-stand-in names no folder of it,"
                        + " examples/setup/find-cuda-stand-in does");
        return HOME + "/libcuda.so.1";
    }

    @SuppressWarnings("restricted")
    public static StandInCuda load() {
        return new StandInCuda(SymbolLookup.libraryLookup(Path.of(library()), Arena.global()));
    }

    public static DeviceDriver driver() {
        return driver(false);
    }

    public static DeviceDriver driver(boolean copiesByKernel) {
        try {
            return DeviceDriver.open(library(), copiesByKernel);
        } catch (NoDeviceException e) {
            throw new AssertionError(e);
        }
    }

    public long callCount(String function) {
        try (Arena arena = Arena.ofConfined()) {
            return (long) callCount.invokeExact(arena.allocateFrom(function));
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** The n-th call of a function from now on, from 1, returns a code. */
    public void fail(String function, long nth, int code) {
        try (Arena arena = Arena.ofConfined()) {
            fail.invokeExact(arena.allocateFrom(function), nth, code);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Allocations, reservations, mappings and page-locked ranges that are held. */
    public long held() {
        try {
            return (long) held.invokeExact();
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Before each operation of a stream. */
    public void delay(long lengthNs) {
        try {
            delay.invokeExact(lengthNs);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Whether each event is said to have been reached, whatever its stream has done. */
    public void lie(boolean lies) {
        try {
            lie.invokeExact(lies ? 1 : 0);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Runs that the kernel has copied. */
    public long runsCopied() {
        try {
            return (long) runsCopied.invokeExact();
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** From now on the kernel leaves out the last byte of each run that is at least so long; 0 = of none. */
    public void dropTails(long fromBytes) {
        try {
            dropTails.invokeExact(fromBytes);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** As if no operation of a stream had met an illegal address. */
    public void forget() {
        try {
            forget.invokeExact();
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Copies that would make the caller wait on hardware. */
    public long pageableCopies() {
        try {
            return (long) pageableCopies.invokeExact();
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** How often the context of a device is held. */
    public int retained(int ordinal) {
        try {
            return (int) retained.invokeExact(ordinal);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** What all devices say of themselves from now on. */
    public void attribute(int which, int value) {
        try {
            attribute.invokeExact(which, value);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** Registers a part of what a dma-buf's descriptor names with a NIC; returns its number, -1 where it names no such part. */
    public long nicRegister(int fd, long offsetBytes, long lengthBytes) {
        try {
            return (long) nicRegister.invokeExact(fd, offsetBytes, lengthBytes);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    public void nicDeregister(long region) {
        try {
            nicDeregister.invokeExact(region);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** A NIC reads what it has registered; false where it has not. */
    public boolean nicRead(long region, long offsetBytes, MemorySegment to) {
        try {
            return (int) nicRead.invokeExact(region, offsetBytes, to, to.byteSize()) == 0;
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** A NIC writes to what it has registered, which the device may see later; false where it has not. */
    public boolean nicWrite(long region, long offsetBytes, MemorySegment from) {
        try {
            return (int) nicWrite.invokeExact(region, offsetBytes, from, from.byteSize()) == 0;
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    /** What lies in a device's memory at this moment, without asking a stream for it. */
    public MemorySegment bytes(long deviceAddress, long lengthBytes) {
        try {
            return ForeignMemory.at((long) bytes.invokeExact(deviceAddress, lengthBytes), lengthBytes);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    @SuppressWarnings("restricted")
    private static MethodHandle function(
            SymbolLookup library, String name, MemoryLayout result, MemoryLayout... arguments) {
        return Linker.nativeLinker()
                .downcallHandle(library.findOrThrow(name), FunctionDescriptor.of(result, arguments));
    }

    @SuppressWarnings("restricted")
    private static MethodHandle procedure(SymbolLookup library, String name, MemoryLayout... arguments) {
        return Linker.nativeLinker().downcallHandle(library.findOrThrow(name), FunctionDescriptor.ofVoid(arguments));
    }
}
