package io.kvmessenger.specdecode;

import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The kinds of context that a side has, in an order that both sides of a transfer have. A value.
 *
 * <p>Which of them go with a transfer is its decoder's to say, and computed here for both sides: those that always go, and
 * those that are asked for. So the rows that are sent are those that are counted.
 */
public record ContextKinds(List<ContextKind> kinds) {
    /** What a choice has bits for, and a peer's frame room. */
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

    /** Whether rows go with every transfer, and make it complete. */
    public boolean anyAlways() {
        return always() != 0;
    }

    /**
     * What goes with a transfer whose decoder asks for the kinds of these names.
     *
     * @throws IllegalArgumentException where there is no such kind
     */
    public ContextChoice chosen(Collection<String> requested) {
        int bits = always();
        for (String name : requested) {
            bits |= 1 << positionOf(name);
        }
        return new ContextChoice(bits);
    }

    /**
     * What goes with a transfer whose decoder asks for the kinds at these bits.
     *
     * @throws IllegalArgumentException where there is no such kind
     */
    public ContextChoice chosen(int requestedBits) {
        int unknown = requestedBits & ~all();
        if (unknown != 0) {
            throw new IllegalArgumentException("context row " + Integer.numberOfTrailingZeros(unknown)
                    + " is asked for, expected rows of [" + describe() + "]");
        }
        return new ContextChoice(always() | requestedBits);
    }

    /** The bits of what goes because it is asked for. */
    public int requestedBits(ContextChoice choice) {
        return choice.bits() & ~always();
    }

    /** The names of what goes because it is asked for. */
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
