package io.kvmessenger.messenger.port;

import java.math.BigInteger;
import java.util.List;
import java.util.Map;

/**
 * One JSON object from the engine: reads a field, and names what is missing or of another type. Not for peers' data.
 *
 * <p>A value; any thread. Every reader throws IllegalArgumentException with one sentence.
 */
public record Fields(String what, Map<String, Object> values) {
    /** How much of an unexpected value an error shows. */
    private static final int EXCERPT_LENGTH = 200;

    @SuppressWarnings("unchecked") // jackson-jr gives Map<String, Object> for every object
    public static Fields of(String what, Object value) {
        if (value instanceof Map<?, ?> map) {
            return new Fields(what, (Map<String, Object>) map);
        }
        throw new IllegalArgumentException(what + " is " + describe(value) + " where an object is expected");
    }

    public boolean has(String name) {
        return values.get(name) != null;
    }

    public Fields object(String name) {
        return of(what + "." + name, values.get(name));
    }

    public String text(String name) {
        if (values.get(name) instanceof String text) {
            return text;
        }
        throw unexpected(name, "a string");
    }

    /** A string that goes into an event, which has to fit into a poll. */
    public String text(String name, int lengthMax) {
        String text = text(name);
        if (text.length() > lengthMax) {
            throw unexpected(name, "a string of at most " + lengthMax + " characters");
        }
        return text;
    }

    /** "" if absent. */
    public String textIfGiven(String name) {
        return has(name) ? text(name) : "";
    }

    /** False if absent. */
    public boolean flagIfGiven(String name) {
        if (!has(name)) {
            return false;
        }
        if (values.get(name) instanceof Boolean flag) {
            return flag;
        }
        throw unexpected(name, "true or false");
    }

    public long integer(String name) {
        Object value = values.get(name);
        if (value instanceof Integer || value instanceof Long) {
            return ((Number) value).longValue();
        }
        throw unexpected(name, "an integer");
    }

    /** A position of a 64-bit unsigned counter, which as a long may be negative. */
    public long position(String name) {
        if (values.get(name) instanceof BigInteger value && value.signum() > 0 && value.bitLength() <= Long.SIZE) {
            return value.longValue();
        }
        return integer(name);
    }

    public int count(String name) {
        long value = integer(name);
        if (value < 0 || value > Integer.MAX_VALUE) {
            throw unexpected(name, "an integer from 0 to " + Integer.MAX_VALUE);
        }
        return (int) value;
    }

    /** 0 if absent. */
    public int countIfGiven(String name) {
        return has(name) ? count(name) : 0;
    }

    public List<?> list(String name) {
        if (values.get(name) instanceof List<?> list) {
            return list;
        }
        throw unexpected(name, "a list");
    }

    public List<Fields> objects(String name) {
        return list(name).stream().map(o -> of(what + "." + name, o)).toList();
    }

    public List<String> texts(String name) {
        return list(name).stream().map(String::valueOf).toList();
    }

    /** None if absent. */
    public List<String> textsIfGiven(String name) {
        return has(name) ? texts(name) : List.of();
    }

    public int[] counts(String name) {
        List<?> list = list(name);
        int[] counts = new int[list.size()];
        for (int i = 0; i < counts.length; i++) {
            if (!(list.get(i) instanceof Integer count) || count < 0) {
                throw unexpected(name, "a list of integers from 0 to " + Integer.MAX_VALUE);
            }
            counts[i] = count;
        }
        return counts;
    }

    private IllegalArgumentException unexpected(String name, String expected) {
        return new IllegalArgumentException(
                what + "." + name + " is " + describe(values.get(name)) + " where " + expected + " is expected");
    }

    private static String describe(Object value) {
        return value == null ? "missing" : value.getClass().getSimpleName() + " " + excerpt(value.toString());
    }

    private static String excerpt(String text) {
        return text.length() <= EXCERPT_LENGTH ? text : text.substring(0, EXCERPT_LENGTH) + " …";
    }
}
