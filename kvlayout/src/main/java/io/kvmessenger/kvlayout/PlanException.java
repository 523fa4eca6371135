package io.kvmessenger.kvlayout;

/** There is no plan between two geometries; {@link Compatibility#check} names the mismatch. */
public final class PlanException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final transient Mismatch mismatch;

    PlanException(Mismatch mismatch) {
        super(mismatch.sentence());
        this.mismatch = mismatch;
    }

    public Mismatch mismatch() {
        return mismatch;
    }
}
