package io.kvmessenger.testkit.sim.check;

/** A checker has observed something that must never happen. Ends the run; the seed reproduces it. */
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
