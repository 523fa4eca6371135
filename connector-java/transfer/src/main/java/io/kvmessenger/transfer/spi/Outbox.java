package io.kvmessenger.transfer.spi;

/** Everything that waits to go to one peer. */
public record Outbox(RequestQueue requests, MessageQueue messages) {}
