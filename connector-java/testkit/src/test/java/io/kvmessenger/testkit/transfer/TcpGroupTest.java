package io.kvmessenger.testkit.transfer;

class TcpGroupTest extends GroupContractTest {
    @Override
    protected String transport() {
        return "tcp";
    }
}
