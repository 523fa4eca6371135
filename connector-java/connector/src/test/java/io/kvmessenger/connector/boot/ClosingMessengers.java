package io.kvmessenger.connector.boot;

/** Messengers that can only be closed, and do then what the test says. */
record ClosingMessengers(Runnable onClose) implements Messengers {
    @Override
    public OpenResult open(byte[] request) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void submit(long handle, byte[] request) {
        throw new UnsupportedOperationException();
    }

    @Override
    public byte[] poll(long handle, int capacityBytes) {
        throw new UnsupportedOperationException();
    }

    @Override
    public byte[] stats(long handle) {
        throw new UnsupportedOperationException();
    }

    @Override
    public byte[] fence(long handle, byte[] request) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void await(long handle, byte[] request) {
        throw new UnsupportedOperationException();
    }

    @Override
    public byte[] leakCheck(long handle) {
        throw new UnsupportedOperationException();
    }

    @Override
    public void close(long handle, byte[] request) {
        onClose.run();
    }
}
