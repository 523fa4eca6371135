package io.kvmessenger.testkit.staging;

/** The same from a device's memory to a host's. */
final class StagedTcpFromDeviceTest extends StagedTcpContractTest {
    @Override
    protected boolean isOnDevice(String name) {
        return !name.equals("target");
    }
}
