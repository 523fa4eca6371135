package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.concurrent.atomic.AtomicReference;

/** The real C library, which refuses the next call of one function when it is told to. Any thread. */
final class RefusingLibC {
    private record Refusal(String function, int errno) {}

    private final LibC real = new FfmLibC();
    private final AtomicReference<Refusal> next = new AtomicReference<>();
    private final LibC refusing = (LibC) Proxy.newProxyInstance(
            LibC.class.getClassLoader(),
            new Class<?>[] {LibC.class},
            (proxy, method, arguments) -> call(method, arguments));

    LibC libC() {
        return refusing;
    }

    /** Of epoll_ctl only additions are refused, as the kernel does. */
    void refuseNext(String function, int errno) {
        next.set(new Refusal(function, errno));
    }

    boolean hasRefused() {
        return next.get() == null;
    }

    private Object call(Method method, Object[] arguments) throws Throwable {
        Refusal refusal = next.get();
        if (refusal != null && isMeant(refusal, method, arguments) && next.compareAndSet(refusal, null)) {
            return method.getReturnType() == long.class ? (Object) (long) -refusal.errno : (Object) (-refusal.errno);
        }
        try {
            return method.invoke(real, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private static boolean isMeant(Refusal refusal, Method method, Object[] arguments) {
        return method.getName().equals(refusal.function)
                && (!method.getName().equals("epoll_ctl") || arguments[1].equals(Epoll.EPOLL_CTL_ADD));
    }
}
