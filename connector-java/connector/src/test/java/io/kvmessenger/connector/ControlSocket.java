package io.kvmessenger.connector;

import io.kvmessenger.messenger.wire.ControlFrame;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;

/** One end of a control link, spoken by hand: what a peer could send that is no messenger. */
final class ControlSocket implements AutoCloseable {
    /** A read that takes longer is a test that hangs: no busy machine takes so long. */
    private static final int ANSWER_LIMIT_MILLIS = 600_000;
    /** Dialled from several addresses, so that many short links do not run out of ports. */
    private static final int SOURCE_ADDRESS_COUNT = 200;

    private static final AtomicInteger dialled = new AtomicInteger();

    private final Socket socket;
    private final DataInputStream in;

    private ControlSocket(Socket socket) throws IOException {
        this.socket = socket;
        socket.setTcpNoDelay(true);
        socket.setSoTimeout(ANSWER_LIMIT_MILLIS);
        in = new DataInputStream(socket.getInputStream());
    }

    static ControlSocket dial(int port) {
        try {
            Socket socket = new Socket();
            int source = 1 + dialled.getAndIncrement() % SOURCE_ADDRESS_COUNT;
            socket.bind(new InetSocketAddress(InetAddress.ofLiteral("127.0.0." + source), 0));
            socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), ANSWER_LIMIT_MILLIS);
            return new ControlSocket(socket);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static ControlSocket accept(ServerSocket listener) {
        try {
            return new ControlSocket(listener.accept());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** A frame with its length before it, as it travels. */
    static byte[] framed(byte[] body) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(Integer.BYTES + body.length);
        try (DataOutputStream data = new DataOutputStream(out)) {
            data.writeInt(body.length);
            data.write(body);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return out.toByteArray();
    }

    boolean send(ControlFrame frame) {
        return send(framed(frame.toByteArray()));
    }

    /** False when the messenger has closed the link. */
    boolean send(byte[] bytes) {
        try {
            socket.getOutputStream().write(bytes);
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /** The messenger's next frame; empty once it has closed the link. */
    Optional<ControlFrame> read() {
        try {
            byte[] body = new byte[in.readInt()];
            in.readFully(body);
            return Optional.of(ControlFrame.parseFrom(body));
        } catch (EOFException | SocketException closed) {
            return Optional.empty();
        } catch (IOException e) {
            throw new UncheckedIOException("no answer and no end of the link", e);
        }
    }

    /** Says that nothing more will come, and waits until the messenger has closed the link too. */
    void awaitClosed() {
        try {
            socket.shutdownOutput();
        } catch (IOException e) {
            return;
        }
        awaitEnd();
    }

    /** Waits until the messenger has closed the link by itself. */
    void awaitEnd() {
        while (read().isPresent()) {
            // what it had to say
        }
    }

    /** Drops the link without the manners that would keep the port busy. */
    @Override
    public void close() {
        try {
            socket.setSoLinger(true, 0);
            socket.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
