package io.kvmessenger.specdecode;

import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The kinds of context that a side has, in an order common to both sides of a transfer. A value.
 *
 * <p>The decoder decides which of them go with a transfer: those that always go, and those that it requests. Both sides
 * compute the set here, so the rows that are sent are the rows that are counted.
 */
public record ContextKinds(List<ContextKind> kinds) {
    /** Limit given by the bits of a choice and by the size of a peer's frame. */
    public static final int COUNT_MAX = 16;

    public static final ContextKinds NONE = new ContextKinds(List.of());

    public ContextKinds {
        kinds = List.copyOf(kinds);
        if (kinds.size() > COUNT_MAX) {
            throw new IllegalArgumentException(kinds.size() + " kinds of context rows, expected at most " + COUNT_MAX
                    + ": put several into one row");
        }
        List<String> names = kinds.stream().map(ContextKind::name).toList();
        if (names.stream().distinct().count() < names.size()) {
            throw new IllegalArgumentException("context rows are named " + names + ", expected each name once");
        }
    }

    public boolean isEmpty() {
        return kinds.isEmpty();
    }

    /** Whether some rows go with every transfer, which is complete only with them. */
    public boolean anyAlways() {
        return always() != 0;
    }

    /**
     * The kinds that go with a transfer whose decoder requests these names.
     *
     * @throws IllegalArgumentException when a kind does not exist
     */
    public ContextChoice chosen(Collection<String> requested) {
        int bits = always();
        for (String name : requested) {
            bits |= 1 << positionOf(name);
        }
        return new ContextChoice(bits);
    }

    /**
     * The kinds that go with a transfer whose decoder requests these bits.
     *
     * @throws IllegalArgumentException when a kind does not exist
     */
    public ContextChoice chosen(int requestedBits) {
        int unknown = requestedBits & ~all();
        if (unknown != 0) {
            throw new IllegalArgumentException("context row " + Integer.numberOfTrailingZeros(unknown)
                    + " is asked for, expected rows of [" + describe() + "]");
        }
        return new ContextChoice(always() | requestedBits);
    }

    public int requestedBits(ContextChoice choice) {
        return choice.bits() & ~always();
    }

    public List<String> requestedNames(ContextChoice choice) {
        return IntStream.range(0, kinds.size())
                .filter(position -> choice.has(position) && !kinds.get(position).always())
                .mapToObj(position -> kinds.get(position).name())
                .toList();
    }

    public String describe() {
        return kinds.stream().map(ContextKind::toString).collect(Collectors.joining(", "));
    }

    private int positionOf(String name) {
        for (int position = 0; position < kinds.size(); position++) {
            if (kinds.get(position).name().equals(name)) {
                return position;
            }
        }
        throw new IllegalArgumentException("context row " + name + " is asked for, expected one of [" + describe()
                + "]: ask for kinds that the messenger was opened with");
    }

    private int all() {
        return (1 << kinds.size()) - 1;
    }

    private int always() {
        int bits = 0;
        for (int position = 0; position < kinds.size(); position++) {
            bits |= kinds.get(position).always() ? 1 << position : 0;
        }
        return bits;
    }
}
