package io.kvmessenger.transfer.spi;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** Remembers what the paths say of themselves, and to their peer. */
public final class FakeInboundChannel implements InboundChannel {
    public final List<String> reported = new ArrayList<>();
    public final List<String> over = new ArrayList<>();
    public final List<String> dismissed = new ArrayList<>();
    public final List<Throwable> errors = new ArrayList<>();
    public int readies;
    public boolean carriesDescriptors;
    public boolean watchesProcess;
    /** Set by a test: the peer does not read, and no record is taken. */
    public boolean full;

    private final Function<MemorySegment, String> words;

    /** @param words what a record that is not empty says */
    public FakeInboundChannel(Function<MemorySegment, String> words) {
        this.words = words;
    }

    @Override
    public int number() {
        return 0;
    }

    @Override
    public boolean watchesProcess() {
        return watchesProcess;
    }

    @Override
    public boolean carriesDescriptors() {
        return carriesDescriptors;
    }

    @Override
    public boolean report(int kind, MemorySegment payload) {
        if (full) {
            return false;
        }
        reported.add(kind + (payload.byteSize() == 0 ? "" : " " + words.apply(payload)));
        return true;
    }

    @Override
    public boolean report(int kind, MemorySegment payload, int... descriptors) {
        assertThat(carriesDescriptors).isTrue();
        return report(kind, payload);
    }

    @Override
    public void onReady() {
        readies++;
    }

    @Override
    public void onOver(String detail) {
        over.add(detail);
    }

    @Override
    public void dismiss(TransferFault fault, String detail) {
        dismissed.add(fault + " " + detail);
    }

    @Override
    public void onError(Throwable error) {
        errors.add(error);
    }
}
