package io.kvmessenger.testkit.device;

import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Each copy of the stand-in for NVIDIA's driver is late during each test of a class, until its engines are closed. */
public final class SlowCopies implements BeforeEachCallback, AfterEachCallback {
    /** Before each copy: far longer than an engine takes to count what it has received. */
    public static final long DELAY_NS = 20_000;

    /** @throws org.opentest4j.TestAbortedException where this machine has no stand-in */
    @Override
    public void beforeEach(ExtensionContext test) {
        StandInCuda.load().delay(DELAY_NS);
    }

    @Override
    public void afterEach(ExtensionContext test) {
        StandInCuda.load().delay(0);
    }
}
