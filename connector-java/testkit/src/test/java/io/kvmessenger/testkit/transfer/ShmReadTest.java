package io.kvmessenger.testkit.transfer;

class ShmReadTest extends ReadContractTest {
    @Override
    protected String transport() {
        return "shm";
    }
}
