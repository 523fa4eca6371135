package io.kvmessenger.transfer.socket;

import java.lang.foreign.MemorySegment;

/** A reader for tests of what a stream sends: it takes every record, and fails on an error. */
final class DeafReader implements ControlStream.Reader {
    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        return true;
    }

    @Override
    public void onEnd(String detail, boolean garbage) {}

    @Override
    public void onError(Throwable error) {
        throw new AssertionError(error);
    }
}
