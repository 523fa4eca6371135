package io.kvmessenger.messenger;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** What an object still refers to, through its own fields and those of the project's other classes, and collections. */
public final class Reachable {
    private static final String OWN_CLASSES = "io.kvmessenger.";

    private final Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Deque<Object> next = new ArrayDeque<>();

    private Reachable() {}

    /**
     * All instances of a class that an object refers to; what these refer to is not looked at.
     *
     * @param ports the ends of the test's own, which are not looked into either
     */
    public static <T> List<T> from(Object root, Class<T> wanted, Object... ports) throws IllegalAccessException {
        Reachable walk = new Reachable();
        walk.seen.addAll(List.of(ports));
        walk.add(root);
        while (!walk.next.isEmpty()) {
            Object object = walk.next.removeFirst();
            if (!wanted.isInstance(object)) {
                walk.expand(object);
            }
        }
        return walk.seen.stream().filter(wanted::isInstance).map(wanted::cast).toList();
    }

    private void add(Object object) {
        if (object != null && seen.add(object)) {
            next.add(object);
        }
    }

    private void expand(Object object) throws IllegalAccessException {
        switch (object) {
            case Map<?, ?> map -> {
                map.keySet().forEach(this::add);
                map.values().forEach(this::add);
            }
            case Iterable<?> elements -> elements.forEach(this::add);
            case Optional<?> optional -> optional.ifPresent(this::add);
            case Object array when array.getClass().isArray() -> expandArray(array);
            default -> {
                // Fields of the project's classes only: a library keeps nothing of ours but in collections.
                for (Class<?> type = object.getClass();
                        type.getName().startsWith(OWN_CLASSES);
                        type = superclass(type)) {
                    expandFields(object, type);
                }
            }
        }
    }

    private static Class<?> superclass(Class<?> type) {
        return type.getSuperclass() == null ? Object.class : type.getSuperclass();
    }

    private void expandArray(Object array) {
        if (!array.getClass().getComponentType().isPrimitive()) {
            for (int i = 0; i < Array.getLength(array); i++) {
                add(Array.get(array, i));
            }
        }
    }

    private void expandFields(Object object, Class<?> type) throws IllegalAccessException {
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) && !field.getType().isPrimitive()) {
                field.setAccessible(true);
                add(field.get(object));
            }
        }
    }
}
