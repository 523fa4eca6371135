package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The C library of this process, of which single functions can be made to fail. Any thread. */
public final class RefusingLibC {
    private final Map<String, Integer> refused = new ConcurrentHashMap<>();
    private final List<String> calls = new ArrayList<>();
    private final LibC libC = (LibC) Proxy.newProxyInstance(
            LibC.class.getClassLoader(),
            new Class<?>[] {LibC.class},
            (proxy, method, arguments) -> call(new FfmLibC(), method, arguments));

    /** To be given to what is tested. */
    public LibC libC() {
        return libC;
    }

    /** From now on the function fails with this errno. */
    public RefusingLibC refuse(String function, int errno) {
        refused.put(function, errno);
        return this;
    }

    /** The functions called so far, by name. */
    public synchronized List<String> calls() {
        return List.copyOf(calls);
    }

    private Object call(LibC real, Method method, Object[] arguments) throws Throwable {
        synchronized (this) {
            calls.add(method.getName());
        }
        Integer errno = refused.get(method.getName());
        if (errno == null) {
            try {
                return method.invoke(real, arguments);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }
        return method.getReturnType() == long.class ? (Object) (long) -errno : (Object) (-errno);
    }
}
