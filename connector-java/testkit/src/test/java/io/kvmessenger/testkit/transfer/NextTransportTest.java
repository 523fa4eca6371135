package io.kvmessenger.testkit.transfer;

/** What {@link NextTransportContractTest} says, by engines with threads of their own. */
class NextTransportTest extends NextTransportContractTest {}
