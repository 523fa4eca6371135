package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** The tests of a class have made the kernel copy runs: otherwise they have shown nothing of it. */
public final class CountedRuns implements BeforeAllCallback, AfterAllCallback {
    /** More than a kernel's own first launch has, of which an engine makes one for each worker and device. */
    private static final long COPIED_MIN = 10_000;

    private long before;

    /** @throws org.opentest4j.TestAbortedException where this machine has no stand-in */
    @Override
    public void beforeAll(ExtensionContext tests) {
        before = StandInCuda.load().runsCopied();
    }

    @Override
    public void afterAll(ExtensionContext tests) {
        assertThat(StandInCuda.load().runsCopied() - before).isGreaterThan(COPIED_MIN);
    }
}
