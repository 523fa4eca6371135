package io.kvmessenger.testkit.transfer;

import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Skips a class of tests where the build has unpacked no libfabric. */
public final class NeedsLibFabric implements BeforeAllCallback {
    @Override
    public void beforeAll(ExtensionContext tests) {
        InstalledFabric.assume();
    }
}
