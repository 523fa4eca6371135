package io.kvmessenger.connector;

import io.kvmessenger.messenger.wire.ControlFrame;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;

/** Stands on the control link between two real messengers and keeps what each has said. */
final class RecordingProxy implements AutoCloseable {
    final List<ControlFrame> ofDecoder = new CopyOnWriteArrayList<>();
    final List<ControlFrame> ofPrefiller = new CopyOnWriteArrayList<>();
    private final ServerSocket listener;
    private final Thread forwards;
    private final Thread backwards;

    RecordingProxy(int prefillerPort) {
        try {
            listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        ControlSocket prefiller = ControlSocket.dial(prefillerPort);
        var decoder = new java.util.concurrent.CompletableFuture<ControlSocket>();
        forwards = Thread.ofPlatform().daemon().start(() -> {
            decoder.complete(ControlSocket.accept(listener));
            pump(decoder.join(), prefiller, ofDecoder);
        });
        backwards = Thread.ofPlatform().daemon().start(() -> pump(prefiller, decoder.join(), ofPrefiller));
    }

    int port() {
        return listener.getLocalPort();
    }

    private static void pump(ControlSocket from, ControlSocket to, List<ControlFrame> record) {
        for (Optional<ControlFrame> frame = from.read(); frame.isPresent(); frame = from.read()) {
            record.add(frame.get());
            to.send(frame.get());
        }
        to.close();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        try {
            forwards.join();
            backwards.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
