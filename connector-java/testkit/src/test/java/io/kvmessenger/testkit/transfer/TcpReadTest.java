package io.kvmessenger.testkit.transfer;

class TcpReadTest extends ReadContractTest {
    @Override
    protected String transport() {
        return "tcp";
    }
}
