package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.function.Function;

/**
 * The libfabric of this machine, by downcalls. Most of its functions are inline and call through an object's table of
 * operations, as do the methods here.
 *
 * <p>Thread-safe as far as the objects are.
 */
public final class FfmLibFabric implements LibFabric {
    /** The name by which the loader finds the library. */
    public static final String DEFAULT_NAME = "libfabric.so.1";

    private static final Linker LINKER = Linker.nativeLinker();
    private static final long ERROR_TEXT_BYTES = 256;

    private static final MethodHandle SETENV = system("setenv", JAVA_INT, ADDRESS, ADDRESS, JAVA_INT);

    /**
     * Must be set before loading: a dependency of Debian's libfabric otherwise installs a SIGSEGV handler that ends the
     * process, and the JVM uses that signal all the time.
     */
    private static final String KEEP_SIGNALS = "IPATH_NO_BACKTRACE";

    // by signature: the first argument of each is the address of the function
    private static final MethodHandle CLOSE = pointer(JAVA_INT, JAVA_LONG);
    private static final MethodHandle BIND = pointer(JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle CONTROL = pointer(JAVA_INT, JAVA_LONG, JAVA_INT, ADDRESS);
    private static final MethodHandle OPEN = pointer(JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS, JAVA_LONG);
    private static final MethodHandle TRYWAIT = pointer(JAVA_INT, JAVA_LONG, ADDRESS, JAVA_INT);
    private static final MethodHandle GETNAME = pointer(JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS);
    private static final MethodHandle INSERT =
            pointer(JAVA_INT, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle REGISTER = pointer(
            JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG);
    private static final MethodHandle READ = pointer(JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG);
    private static final MethodHandle STRERROR = pointer(ADDRESS, JAVA_LONG, JAVA_INT, JAVA_LONG, ADDRESS, JAVA_LONG);
    private static final MethodHandle WRITEDATA = pointer(
            JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG,
            JAVA_LONG);

    private final MethodHandle version;
    private final MethodHandle getinfo;
    private final MethodHandle dupinfo;
    private final MethodHandle freeinfo;
    private final MethodHandle fabric;
    private final MethodHandle strerror;

    /** Caches of the functions last called on the data path, which mostly belong to one provider. */
    private Entry read = Entry.NONE;

    private Entry write = Entry.NONE;

    /** A function pointer in the form of a downcall, created once. Immutable, so a data race on the cache is benign. */
    private record Entry(long address, MemorySegment point) {
        static final Entry NONE = new Entry(0, MemorySegment.NULL);

        static Entry at(long address) {
            return new Entry(address, MemorySegment.ofAddress(address));
        }
    }

    /**
     * Loads the library; it stays loaded until the process ends.
     *
     * @param library its path, or a name for the loader
     * @throws UnsatisfiedLinkError saying in one line why it cannot be
     */
    public FfmLibFabric(String library) {
        this(load(library)::find);
    }

    /** Uses the exported functions that {@code exports} finds by name, from any source. */
    public FfmLibFabric(Function<String, MemorySegment> exports) {
        version = export(exports, "fi_version", FunctionDescriptor.of(JAVA_INT));
        getinfo = export(
                exports,
                "fi_getinfo",
                FunctionDescriptor.of(JAVA_INT, JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS));
        dupinfo = export(exports, "fi_dupinfo", FunctionDescriptor.of(ADDRESS, ADDRESS));
        freeinfo = export(exports, "fi_freeinfo", FunctionDescriptor.ofVoid(ADDRESS));
        fabric = export(exports, "fi_fabric", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG));
        strerror = export(exports, "fi_strerror", FunctionDescriptor.of(ADDRESS, JAVA_INT));
    }

    private static LoadedLibrary load(String library) {
        try (Arena arena = Arena.ofConfined()) {
            int _ = (int) SETENV.invokeExact(arena.allocateFrom(KEEP_SIGNALS), arena.allocateFrom("1"), 1);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
        return new LoadedLibrary(library);
    }

    @SuppressWarnings("restricted")
    private static MethodHandle export(
            Function<String, MemorySegment> exports, String name, FunctionDescriptor descriptor) {
        return LINKER.downcallHandle(exports.apply(name), descriptor);
    }

    @Override
    public int fi_version() {
        try {
            return (int) version.invokeExact();
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_getinfo(int apiVersion, MemorySegment node, long flags, MemorySegment hints, MemorySegment info) {
        try {
            return (int) getinfo.invokeExact(apiVersion, node, MemorySegment.NULL, flags, hints, info);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public MemorySegment fi_dupinfo(MemorySegment info) {
        try {
            return (MemorySegment) dupinfo.invokeExact(info);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public void fi_freeinfo(MemorySegment info) {
        try {
            freeinfo.invokeExact(info);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_fabric(MemorySegment attributes, MemorySegment opened) {
        try {
            return (int) fabric.invokeExact(attributes, opened, 0L);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public String fi_strerror(int number) {
        try {
            return text((MemorySegment) strerror.invokeExact(number));
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_close(long fid) {
        long function = operation(fid + FabricLayout.FID_OPS, FabricLayout.OPS_CLOSE);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) CLOSE.invokeExact(MemorySegment.ofAddress(function), fid);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_control(long fid, int command, MemorySegment argument) {
        long function = operation(fid + FabricLayout.FID_OPS, FabricLayout.OPS_CONTROL);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) CONTROL.invokeExact(MemorySegment.ofAddress(function), fid, command, argument);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_domain(long ofFabric, MemorySegment info, MemorySegment domain) {
        return open(ofFabric, FabricLayout.FABRIC_OPS, FabricLayout.OPS_FABRIC_DOMAIN, info, domain);
    }

    @Override
    public int fi_trywait(long ofFabric, MemorySegment fids, int count) {
        long function = operation(ofFabric + FabricLayout.FABRIC_OPS, FabricLayout.OPS_FABRIC_TRYWAIT);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) TRYWAIT.invokeExact(MemorySegment.ofAddress(function), ofFabric, fids, count);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_av_open(long domain, MemorySegment attributes, MemorySegment vector) {
        return open(domain, FabricLayout.DOMAIN_OPS, FabricLayout.OPS_DOMAIN_AV_OPEN, attributes, vector);
    }

    @Override
    public int fi_cq_open(long domain, MemorySegment attributes, MemorySegment queue) {
        return open(domain, FabricLayout.DOMAIN_OPS, FabricLayout.OPS_DOMAIN_CQ_OPEN, attributes, queue);
    }

    @Override
    public int fi_endpoint(long domain, MemorySegment info, MemorySegment endpoint) {
        return open(domain, FabricLayout.DOMAIN_OPS, FabricLayout.OPS_DOMAIN_ENDPOINT, info, endpoint);
    }

    private static int open(long owner, long table, long offset, MemorySegment attributes, MemorySegment opened) {
        long function = operation(owner + table, offset);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) OPEN.invokeExact(MemorySegment.ofAddress(function), owner, attributes, opened, 0L);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_ep_bind(long endpoint, long fid, long flags) {
        long function = operation(endpoint + FabricLayout.FID_OPS, FabricLayout.OPS_BIND);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) BIND.invokeExact(MemorySegment.ofAddress(function), endpoint, fid, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_enable(long endpoint) {
        return fi_control(endpoint, FabricApi.FI_ENABLE, MemorySegment.NULL);
    }

    @Override
    public int fi_getname(long endpoint, MemorySegment address, MemorySegment lengthBytes) {
        long function = operation(endpoint + FabricLayout.EP_CM, FabricLayout.OPS_CM_GETNAME);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) GETNAME.invokeExact(MemorySegment.ofAddress(function), endpoint, address, lengthBytes);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_av_insert(long vector, MemorySegment address, MemorySegment handle) {
        long function = operation(vector + FabricLayout.AV_OPS, FabricLayout.OPS_AV_INSERT);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) INSERT.invokeExact(MemorySegment.ofAddress(function), vector, address, 1L, handle, 0L, 0L);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int fi_mr_reg(
            long domain, long address, long lengthBytes, long access, long requestedKey, MemorySegment region) {
        long function = operation(domain + FabricLayout.DOMAIN_MR, FabricLayout.OPS_MR_REG);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (int) REGISTER.invokeExact(
                    MemorySegment.ofAddress(function),
                    domain,
                    address,
                    lengthBytes,
                    access,
                    0L,
                    requestedKey,
                    0L,
                    region,
                    0L);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long fi_mr_desc(long region) {
        return ForeignMemory.longAt(region + FabricLayout.MR_DESC);
    }

    @Override
    public long fi_mr_key(long region) {
        return ForeignMemory.longAt(region + FabricLayout.MR_KEY);
    }

    @Override
    public long fi_cq_read(long queue, MemorySegment entries, long count) {
        long address = operation(queue + FabricLayout.CQ_OPS, FabricLayout.OPS_CQ_READ);
        if (address == 0) {
            return -Errno.ENOSYS;
        }
        Entry entry = read;
        if (entry.address != address) {
            entry = Entry.at(address);
            read = entry;
        }
        try {
            return (long) READ.invokeExact(entry.point, queue, entries, count);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long fi_cq_readerr(long queue, MemorySegment entry) {
        long function = operation(queue + FabricLayout.CQ_OPS, FabricLayout.OPS_CQ_READERR);
        if (function == 0) {
            return -Errno.ENOSYS;
        }
        try {
            return (long) READ.invokeExact(MemorySegment.ofAddress(function), queue, entry, 0L);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public String fi_cq_strerror(long queue, MemorySegment entry) {
        long function = operation(queue + FabricLayout.CQ_OPS, FabricLayout.OPS_CQ_STRERROR);
        if (function == 0) {
            return "";
        }
        int number = entry.get(JAVA_INT, FabricLayout.CQ_ERROR_PROV_ERRNO);
        long data = entry.get(JAVA_LONG, FabricLayout.CQ_ERROR_ERR_DATA);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment buffer = arena.allocate(ERROR_TEXT_BYTES);
            return text((MemorySegment) STRERROR.invokeExact(
                    MemorySegment.ofAddress(function), queue, number, data, buffer, ERROR_TEXT_BYTES));
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long fi_writedata(
            long endpoint,
            long source,
            long lengthBytes,
            long descriptor,
            long data,
            long targetHandle,
            long target,
            long key,
            long context) {
        long address = operation(endpoint + FabricLayout.EP_RMA, FabricLayout.OPS_RMA_WRITEDATA);
        if (address == 0) {
            return -Errno.ENOSYS;
        }
        Entry entry = write;
        if (entry.address != address) {
            entry = Entry.at(address);
            write = entry;
        }
        try {
            return (long) WRITEDATA.invokeExact(
                    entry.point, endpoint, source, lengthBytes, descriptor, data, targetHandle, target, key, context);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    /** The function at an offset of a table of operations; 0 if the table is shorter, or the entry is null. */
    private static long operation(long tableAt, long offset) {
        long table = ForeignMemory.longAt(tableAt);
        return table == 0 || ForeignMemory.longAt(table + FabricLayout.OPS_SIZE) <= offset
                ? 0
                : ForeignMemory.longAt(table + offset);
    }

    private static String text(MemorySegment string) {
        return ForeignMemory.stringAt(string.address());
    }

    @SuppressWarnings("restricted")
    private static MethodHandle system(String name, MemoryLayout result, MemoryLayout... arguments) {
        return LINKER.downcallHandle(
                LINKER.defaultLookup().findOrThrow(name), FunctionDescriptor.of(result, arguments));
    }

    @SuppressWarnings("restricted")
    private static MethodHandle pointer(MemoryLayout result, MemoryLayout... arguments) {
        return LINKER.downcallHandle(FunctionDescriptor.of(result, arguments));
    }
}
