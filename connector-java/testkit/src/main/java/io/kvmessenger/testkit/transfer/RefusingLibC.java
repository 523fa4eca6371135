package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The real C library, which can fail the next call of a function. Any thread.
 *
 * <p>Of functions that move bytes, only the first call on a descriptor fails: established connections are not meant,
 * and their worker may be about to poll its sockets again.
 */
final class RefusingLibC {
    private static final Set<String> MOVING_BYTES = Set.of("recvmsg", "sendmsg", "readv");

    /** A descriptor on which a function has been called. */
    private record Use(String function, Object fd) {}

    private record Refusal(String function, int errno) {}

    private final LibC real = new FfmLibC();
    private final AtomicReference<Refusal> next = new AtomicReference<>();
    private final Set<Use> used = ConcurrentHashMap.newKeySet();
    private final LibC refusing = (LibC) Proxy.newProxyInstance(
            LibC.class.getClassLoader(),
            new Class<?>[] {LibC.class},
            (proxy, method, arguments) -> call(method, arguments));

    LibC libC() {
        return refusing;
    }

    /** Of epoll_ctl only additions fail, as in the kernel; of getsockopt only questions for a peer's process. */
    void refuseNext(String function, int errno) {
        next.set(new Refusal(function, errno));
    }

    boolean hasRefused() {
        return next.get() == null;
    }

    private Object call(Method method, Object[] arguments) throws Throwable {
        Refusal refusal = next.get();
        boolean first = isFirst(method, arguments);
        if (refusal != null && first && isMeant(refusal, method, arguments) && next.compareAndSet(refusal, null)) {
            return method.getReturnType() == long.class ? (Object) (long) -refusal.errno : (Object) (-refusal.errno);
        }
        try {
            return method.invoke(real, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private boolean isFirst(Method method, Object[] arguments) {
        if (method.getName().equals("close")) {
            MOVING_BYTES.forEach(function -> used.remove(new Use(function, arguments[0])));
        }
        return !MOVING_BYTES.contains(method.getName()) || used.add(new Use(method.getName(), arguments[0]));
    }

    private static boolean isMeant(Refusal refusal, Method method, Object[] arguments) {
        if (!method.getName().equals(refusal.function)) {
            return false;
        }
        return switch (refusal.function) {
            case "epoll_ctl" -> arguments[1].equals(Epoll.EPOLL_CTL_ADD);
            case "getsockopt" -> arguments[2].equals(SocketApi.SO_PEERPIDFD);
            default -> true;
        };
    }
}
