package io.kvmessenger.messenger;

import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.ArrayList;
import java.util.List;

/** One side's end of the control network, as a list of what it did; the test carries the frames. */
public final class Wire implements ControlNetwork {
    public static final long DIALLED_LINK = 1;

    public final List<ControlFrame> sent = new ArrayList<>();
    /** By which link each of them goes. */
    public final List<Long> links = new ArrayList<>();

    public boolean closed;
    public boolean trusted;
    /** Set by a test: thrown at the next dial. */
    public Error bugOfDial;
    /** How often it was dialled. */
    public int dialledCount;

    @Override
    public long dial(String host, int port) {
        dialledCount++;
        if (bugOfDial != null) {
            throw bugOfDial;
        }
        return DIALLED_LINK;
    }

    @Override
    public void send(long link, ControlFrame frame) {
        sent.add(frame);
        links.add(link);
    }

    @Override
    public void trust(long link) {
        trusted = true;
    }

    @Override
    public void close(long link) {
        closed = true;
    }

    public List<ControlFrame> take() {
        List<ControlFrame> taken = List.copyOf(sent);
        sent.clear();
        links.clear();
        return taken;
    }
}
