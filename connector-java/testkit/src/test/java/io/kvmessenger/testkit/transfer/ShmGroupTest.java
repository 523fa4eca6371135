package io.kvmessenger.testkit.transfer;

class ShmGroupTest extends GroupContractTest {
    @Override
    protected String transport() {
        return "shm";
    }
}
