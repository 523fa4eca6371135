package io.kvmessenger.transfer;

import java.util.List;
import java.util.function.BiConsumer;

/**
 * One option of a transfer engine, declared by what reads it. An immutable value.
 *
 * @param name by which an error calls it; for an option of a messenger's users it is theirs
 * @param byDefault its value where none is set
 * @param type of the value, or of each value in a list
 * @param rule refuses values by {@link #require}
 */
public record TransferOption<T>(String name, T byDefault, Class<?> type, BiConsumer<TransferOption<T>, T> rule) {
    /** One that may have any value of its type, which is no list. */
    public static <T> TransferOption<T> any(String name, T byDefault) {
        return new TransferOption<>(name, byDefault, byDefault.getClass(), (option, value) -> {});
    }

    public static TransferOption<Integer> integer(String name, int byDefault, int min, int max) {
        return new TransferOption<>(
                name,
                byDefault,
                Integer.class,
                (option, value) -> option.require(value >= min && value <= max, value, min + " to " + max));
    }

    /** A time that is more than 0. */
    public static TransferOption<Long> nanos(String name, long byDefault) {
        return new TransferOption<>(
                name, byDefault, Long.class, (option, value) -> option.require(value > 0, value, "more than 0"));
    }

    /** A list of names that are all different, empty by default. */
    public static TransferOption<List<String>> names(String name, int countMax, String what) {
        return new TransferOption<>(
                name,
                List.of(),
                String.class,
                (option, value) -> option.require(
                        value.size() <= countMax && value.stream().distinct().count() == value.size(),
                        value,
                        "at most " + countMax + " " + what + ", each once"));
    }

    /** @throws IllegalArgumentException with one sentence, for the user */
    public void require(boolean holds, Object seen, String expected) {
        if (!holds) {
            throw new IllegalArgumentException(
                    "option " + name + " is " + seen + ", expected " + expected + "; change it and open again");
        }
    }

    /** The value, if it is of the type and keeps the rule. */
    @SuppressWarnings("unchecked") // T is the type, or a list of it
    T checked(Object value) {
        boolean severalExpected = byDefault instanceof List<?>;
        boolean fits = severalExpected
                ? value instanceof List<?> list && list.stream().allMatch(type::isInstance)
                : type.isInstance(value);
        require(fits, value, (severalExpected ? "a list of " : "") + type.getSimpleName());
        T checked = (T) (value instanceof List<?> list ? List.copyOf(list) : value);
        rule.accept(this, checked);
        return checked;
    }
}
