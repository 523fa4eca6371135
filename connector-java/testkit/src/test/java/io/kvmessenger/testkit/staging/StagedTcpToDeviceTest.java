package io.kvmessenger.testkit.staging;

/** The same from host memory to a device's. */
final class StagedTcpToDeviceTest extends StagedTcpContractTest {
    @Override
    protected boolean isOnDevice(String name) {
        return name.equals("target");
    }
}
