package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * The libibverbs of this machine, by downcalls. Its data path functions are inline and call through a device's table of
 * operations, as do the methods here.
 *
 * <p>Thread-safe as far as the objects are.
 */
public final class FfmLibVerbs implements LibVerbs {
    /** The name by which the loader finds the library. */
    public static final String DEFAULT_NAME = "libibverbs.so.1";

    // by signature: the first argument of each is the address of the function
    private static final MethodHandle POST = pointer(JAVA_INT, JAVA_LONG, JAVA_LONG, ADDRESS);
    private static final MethodHandle POLL = pointer(JAVA_INT, JAVA_LONG, JAVA_INT, ADDRESS);

    private final MethodHandle getDeviceList;
    private final MethodHandle freeDeviceList;
    private final MethodHandle getDeviceName;
    private final MethodHandle openDevice;
    private final MethodHandle closeDevice;
    private final MethodHandle queryDevice;
    private final MethodHandle queryPort;
    private final MethodHandle queryGidEx;
    private final MethodHandle allocPd;
    private final MethodHandle deallocPd;
    private final MethodHandle regMr;
    private final MethodHandle regDmabufMr;
    private final MethodHandle deregMr;
    private final MethodHandle createCq;
    private final MethodHandle destroyCq;
    private final MethodHandle createQp;
    private final MethodHandle modifyQp;
    private final MethodHandle destroyQp;
    private final MethodHandle wcStatusStr;

    /** Caches of the functions last called on the data path, which mostly belong to one device. */
    private Function postSend = Function.NONE;

    private Function postRecv = Function.NONE;
    private Function pollCq = Function.NONE;

    /** A function pointer in the form of a downcall, created once. Immutable, so a data race on the cache is benign. */
    private record Function(long address, MemorySegment entry) {
        static final Function NONE = new Function(0, MemorySegment.NULL);

        Function at(long wanted) {
            return address == wanted ? this : new Function(wanted, MemorySegment.ofAddress(wanted));
        }
    }

    /**
     * Loads the library; it stays loaded until the process ends.
     *
     * @param name its path, or a name for the loader
     * @throws UnsatisfiedLinkError saying in one line why it cannot be
     */
    public FfmLibVerbs(String name) {
        LoadedLibrary library = new LoadedLibrary(name);
        getDeviceList = library.symbol("ibv_get_device_list", FunctionDescriptor.of(JAVA_LONG, ADDRESS), FfmLibC.ERRNO);
        freeDeviceList = library.symbol("ibv_free_device_list", FunctionDescriptor.ofVoid(JAVA_LONG));
        getDeviceName = library.symbol("ibv_get_device_name", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG));
        openDevice = library.symbol("ibv_open_device", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), FfmLibC.ERRNO);
        closeDevice = library.symbol("ibv_close_device", FunctionDescriptor.of(JAVA_INT, JAVA_LONG), FfmLibC.ERRNO);
        queryDevice =
                library.symbol("ibv_query_device", FunctionDescriptor.of(JAVA_INT, JAVA_LONG, ADDRESS), FfmLibC.ERRNO);
        queryPort = library.symbol(
                "ibv_query_port", FunctionDescriptor.of(JAVA_INT, JAVA_LONG, JAVA_BYTE, ADDRESS), FfmLibC.ERRNO);
        queryGidEx = library.symbol(
                "_ibv_query_gid_ex",
                FunctionDescriptor.of(JAVA_INT, JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT, JAVA_LONG),
                FfmLibC.ERRNO);
        allocPd = library.symbol("ibv_alloc_pd", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), FfmLibC.ERRNO);
        deallocPd = library.symbol("ibv_dealloc_pd", FunctionDescriptor.of(JAVA_INT, JAVA_LONG), FfmLibC.ERRNO);
        regMr = library.symbol(
                "ibv_reg_mr_iova2",
                FunctionDescriptor.of(JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT),
                FfmLibC.ERRNO);
        regDmabufMr = library.optional(
                "ibv_reg_dmabuf_mr",
                FunctionDescriptor.of(JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT),
                FfmLibC.ERRNO);
        deregMr = library.symbol("ibv_dereg_mr", FunctionDescriptor.of(JAVA_INT, JAVA_LONG), FfmLibC.ERRNO);
        createCq = library.symbol(
                "ibv_create_cq",
                FunctionDescriptor.of(JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_INT),
                FfmLibC.ERRNO);
        destroyCq = library.symbol("ibv_destroy_cq", FunctionDescriptor.of(JAVA_INT, JAVA_LONG), FfmLibC.ERRNO);
        createQp = library.symbol("ibv_create_qp", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG, ADDRESS), FfmLibC.ERRNO);
        modifyQp = library.symbol(
                "ibv_modify_qp", FunctionDescriptor.of(JAVA_INT, JAVA_LONG, ADDRESS, JAVA_INT), FfmLibC.ERRNO);
        destroyQp = library.symbol("ibv_destroy_qp", FunctionDescriptor.of(JAVA_INT, JAVA_LONG), FfmLibC.ERRNO);
        wcStatusStr = library.symbol("ibv_wc_status_str", FunctionDescriptor.of(JAVA_LONG, JAVA_INT));
    }

    @Override
    public long ibv_get_device_list(MemorySegment count) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) getDeviceList.invokeExact(state, count), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public void ibv_free_device_list(long list) {
        try {
            freeDeviceList.invokeExact(list);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public String ibv_get_device_name(long device) {
        try {
            return ForeignMemory.stringAt((long) getDeviceName.invokeExact(device));
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long ibv_open_device(long device) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) openDevice.invokeExact(state, device), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_close_device(long context) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) closeDevice.invokeExact(state, context), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_query_device(long context, MemorySegment attributes) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) queryDevice.invokeExact(state, context, attributes), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_query_port(long context, int port, MemorySegment attributes) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) queryPort.invokeExact(state, context, (byte) port, attributes), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_query_gid_ex(long context, int port, int index, MemorySegment entry) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result(
                    (int) queryGidEx.invokeExact(
                            state, context, port, index, entry, 0, VerbsLayout.GID_ENTRY_SIZE_BYTES),
                    state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long ibv_alloc_pd(long context) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) allocPd.invokeExact(state, context), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_dealloc_pd(long domain) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) deallocPd.invokeExact(state, domain), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long ibv_reg_mr(long domain, long address, long lengthBytes, int access) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) regMr.invokeExact(state, domain, address, lengthBytes, address, access), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long ibv_reg_dmabuf_mr(long domain, long offsetBytes, long lengthBytes, long address, int fd, int access) {
        if (regDmabufMr == null) {
            return -Errno.ENOSYS;
        }
        MemorySegment state = FfmLibC.callState();
        try {
            return object(
                    (long) regDmabufMr.invokeExact(state, domain, offsetBytes, lengthBytes, address, fd, access),
                    state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_dereg_mr(long region) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) deregMr.invokeExact(state, region), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int lkey(long region) {
        return ForeignMemory.intAt(region + VerbsLayout.MR_LKEY);
    }

    @Override
    public int rkey(long region) {
        return ForeignMemory.intAt(region + VerbsLayout.MR_RKEY);
    }

    @Override
    public long ibv_create_cq(long context, int entries) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) createCq.invokeExact(state, context, entries, 0L, 0L, 0), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_destroy_cq(long queue) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) destroyCq.invokeExact(state, queue), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public long ibv_create_qp(long domain, MemorySegment attributes) {
        MemorySegment state = FfmLibC.callState();
        try {
            return object((long) createQp.invokeExact(state, domain, attributes), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_modify_qp(long pair, MemorySegment attributes, int mask) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) modifyQp.invokeExact(state, pair, attributes, mask), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_destroy_qp(long pair) {
        MemorySegment state = FfmLibC.callState();
        try {
            return result((int) destroyQp.invokeExact(state, pair), state);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int qp_num(long pair) {
        return ForeignMemory.intAt(pair + VerbsLayout.QP_QP_NUM);
    }

    @Override
    public int ibv_post_send(long pair, long request, MemorySegment refused) {
        Function function = postSend.at(operation(pair + VerbsLayout.QP_CONTEXT, VerbsLayout.CONTEXT_OPS_POST_SEND));
        postSend = function;
        try {
            return -(int) POST.invokeExact(function.entry, pair, request, refused);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_post_recv(long pair, long request, MemorySegment refused) {
        Function function = postRecv.at(operation(pair + VerbsLayout.QP_CONTEXT, VerbsLayout.CONTEXT_OPS_POST_RECV));
        postRecv = function;
        try {
            return -(int) POST.invokeExact(function.entry, pair, request, refused);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int ibv_poll_cq(long queue, int entries, MemorySegment completions) {
        Function function = pollCq.at(operation(queue + VerbsLayout.CQ_CONTEXT, VerbsLayout.CONTEXT_OPS_POLL_CQ));
        pollCq = function;
        try {
            return (int) POLL.invokeExact(function.entry, queue, entries, completions);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public String ibv_wc_status_str(int status) {
        try {
            return ForeignMemory.stringAt((long) wcStatusStr.invokeExact(status));
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    /** The function at an offset of a device's context. */
    private static long operation(long contextAt, long offset) {
        return ForeignMemory.longAt(ForeignMemory.longAt(contextAt) + offset);
    }

    private static long object(long address, MemorySegment state) {
        return address == 0 ? -FfmLibC.errno(state) : address;
    }

    /** Normalises a result: most functions return the error number, some -1 with the number in errno. */
    private static int result(int returned, MemorySegment state) {
        return returned == -1 ? -FfmLibC.errno(state) : -Math.abs(returned);
    }

    @SuppressWarnings("restricted")
    private static MethodHandle pointer(MemoryLayout result, MemoryLayout... arguments) {
        return Linker.nativeLinker().downcallHandle(FunctionDescriptor.of(result, arguments));
    }
}
