package io.kvmessenger.testkit.transfer;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Libfabric with its provider {@code shm} under another name: engines refuse it under its own. Each domain has a name of its own in
 * {@code /dev/shm}, since copies of the library in one process would give the same. Any thread.
 */
final class ShmByAnotherName implements InvocationHandler {
    static final String NAME = "lab";

    private static final String REAL_NAME = "shm";
    private static final AtomicInteger MADE = new AtomicInteger();

    private final Arena arena = Arena.ofAuto();
    private final LibFabric library;

    private ShmByAnotherName(String file) {
        library = new FfmLibFabric(file);
    }

    /** @param file of the library; another file is another library, also where it is a copy */
    static LibFabric load(String file) {
        Class<?>[] type = {LibFabric.class};
        return (LibFabric) Proxy.newProxyInstance(type[0].getClassLoader(), type, new ShmByAnotherName(file));
    }

    @Override
    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
        return switch (method.getName()) {
            case "fi_getinfo" -> find(method, arguments);
            case "fi_fabric" -> called((MemorySegment) arguments[0], method, arguments);
            case "fi_domain", "fi_endpoint" ->
                called(fabricAttributes((MemorySegment) arguments[1]), method, arguments);
            default -> call(method, arguments);
        };
    }

    private Object find(Method method, Object[] arguments) throws Throwable {
        MemorySegment hints = fabricAttributes((MemorySegment) arguments[3]);
        if (!NAME.equals(provider(hints))) {
            return call(method, arguments);
        }
        long wanted = hints.get(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME);
        hints.set(ADDRESS, FabricLayout.FABRIC_ATTR_PROV_NAME, arena.allocateFrom(REAL_NAME));
        arguments[1] = arena.allocateFrom(
                "kv-messenger-test-" + ProcessHandle.current().pid() + "-" + MADE.incrementAndGet());
        arguments[2] = FabricApi.FI_SOURCE;
        Object result = call(method, arguments);
        hints.set(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME, wanted);
        for (long at = ((MemorySegment) arguments[4]).get(JAVA_LONG, 0); at != 0; ) {
            MemorySegment info = ForeignMemory.at(at, FabricLayout.INFO_SIZE_BYTES);
            rename(fabricAttributes(info), NAME);
            at = info.get(JAVA_LONG, FabricLayout.INFO_NEXT);
        }
        return result;
    }

    /** The library looks for the provider that it knows. */
    private Object called(MemorySegment fabricAttributes, Method method, Object[] arguments) throws Throwable {
        boolean renamed = NAME.equals(provider(fabricAttributes));
        if (renamed) {
            rename(fabricAttributes, REAL_NAME);
        }
        Object result = call(method, arguments);
        if (renamed) {
            rename(fabricAttributes, NAME);
        }
        return result;
    }

    private Object call(Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(library, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private static MemorySegment fabricAttributes(MemorySegment info) {
        return ForeignMemory.at(
                info.get(JAVA_LONG, FabricLayout.INFO_FABRIC_ATTR), FabricLayout.FABRIC_ATTR_SIZE_BYTES);
    }

    private static String provider(MemorySegment fabricAttributes) {
        return ForeignMemory.stringAt(fabricAttributes.get(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME));
    }

    /** In the library's own memory: both names are as long. */
    private static void rename(MemorySegment fabricAttributes, String name) {
        long at = fabricAttributes.get(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME);
        ForeignMemory.at(at, NAME.length() + 1L).setString(0, name);
    }
}
