package io.kvmessenger.testkit.sim.check;

/** A checker saw what must never happen. Ends the run; the seed says how to see it again. */
public final class Violation extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final String checker;

    public Violation(String checker, String sentence) {
        super(sentence);
        this.checker = checker;
    }

    public String checker() {
        return checker;
    }
}
