package io.kvmessenger.testkit.staging;

/** The same from host memory to a device's. */
final class LandedFabricFromHostTest extends LandedFabricContractTest {
    @Override
    protected boolean isOnDevice(String name) {
        return name.equals("target");
    }
}
