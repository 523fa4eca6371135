package io.kvmessenger.connector;

import io.kvmessenger.messenger.wire.ControlFrame;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;

/** Accepts connections and never says a word; keeps the newest open. */
final class SilentListener implements AutoCloseable {
    private static final int OPEN_MAX = 16;
    private static final int BACKLOG = 256;

    private final ServerSocket listener;
    private final Thread accepting;

    SilentListener() throws IOException {
        listener = new ServerSocket(0, BACKLOG, InetAddress.getLoopbackAddress());
        accepting = Thread.ofPlatform().daemon().name("silent-listener").start(this::run);
    }

    /** What a decoder has said, had it asked for writes to this listener. */
    List<ControlFrame> insteadOfDataSocketsIn(List<ControlFrame> conversation) {
        return conversation.stream().map(this::changed).toList();
    }

    private ControlFrame changed(ControlFrame frame) {
        ControlFrame.Builder changed = frame.toBuilder();
        if (frame.hasAttach()) {
            changed.getAttachBuilder()
                    .getTransportsBuilderList()
                    .forEach(transport -> transport.setLocation("127.0.0.1:" + listener.getLocalPort()));
        }
        return changed.build();
    }

    private void run() {
        Deque<Socket> open = new ArrayDeque<>();
        try {
            while (true) {
                open.add(listener.accept());
                if (open.size() > OPEN_MAX) {
                    open.remove().close();
                }
            }
        } catch (IOException closed) {
            open.forEach(SilentListener::close);
        }
    }

    private static void close(Socket socket) {
        try {
            socket.close();
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    @Override
    public void close() throws IOException {
        stop();
    }

    /** Ends it; may be called more than once. */
    void stop() throws IOException {
        listener.close();
        try {
            accepting.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
