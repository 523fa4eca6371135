package io.kvmessenger.benchmarks;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The target on another host: a connection replaces the standard streams of a process that {@link KvPerf} starts.
 *
 * <p>The dialling side sends its arguments, so that both parse the same. The dialling side is not authenticated: the
 * port is meant for the time of a measurement on a trusted network, and accepts one connection at a time.
 */
final class TargetHost implements AutoCloseable {
    /** Sent before the arguments, so that another service or another build is detected at once. */
    private static final int GREETING = 0x6b76_7031;

    private static final int ARGUMENTS_MAX = 64;
    private static final int CONNECT_LIMIT_MILLIS = 10_000;

    private final Socket socket;
    private final String[] arguments;

    private TargetHost(Socket socket, String[] arguments) {
        this.socket = socket;
        this.arguments = arguments;
    }

    /** @throws IllegalStateException with one sentence: nothing answers there, or it is not a target */
    static TargetHost dial(String place, String[] given) throws IOException {
        Socket socket = connected(place);
        try {
            socket.setTcpNoDelay(true);
            String[] arguments = withHosts(given, socket);
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            out.writeInt(GREETING);
            out.writeInt(arguments.length);
            for (String argument : arguments) {
                out.writeUTF(argument);
            }
            return new TargetHost(socket, arguments);
        } catch (IOException e) {
            socket.close();
            throw unreachable(place, e.getMessage());
        }
    }

    /** Tries every address of the name within the limit. */
    private static Socket connected(String place) throws IOException {
        List<InetSocketAddress> addresses = addresses("--dial", place);
        List<String> refusals = new ArrayList<>();
        for (InetSocketAddress address : addresses) {
            Socket socket = new Socket();
            try {
                socket.connect(address, CONNECT_LIMIT_MILLIS / addresses.size());
                return socket;
            } catch (IOException e) {
                socket.close();
                refusals.add(address.getAddress().getHostAddress() + ": " + e.getMessage());
            }
        }
        throw unreachable(place, String.join("; ", refusals));
    }

    private static IllegalStateException unreachable(String place, String reason) {
        return new IllegalStateException("the target at " + place + " cannot be reached (" + reason
                + "): begin with --listen there, and let the firewall pass that port");
    }

    /** Fills in the connection's addresses for those that the user has not given. */
    private static String[] withHosts(String[] given, Socket socket) {
        List<String> arguments = new ArrayList<>(List.of(given));
        if (!arguments.contains("--hosts")) {
            arguments.addAll(List.of("--hosts", socket.getLocalAddress().getHostAddress()));
        }
        if (!arguments.contains("--target-hosts")) {
            arguments.addAll(List.of("--target-hosts", socket.getInetAddress().getHostAddress()));
        }
        return arguments.toArray(String[]::new);
    }

    /** The arguments that both sides parse. */
    String[] arguments() {
        return arguments;
    }

    ControlPipe control() throws IOException {
        return new ControlPipe(socket.getInputStream(), socket.getOutputStream());
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }

    /** Serves one run after the other, until the process is ended. */
    static void serve(String place, PrintStream log) throws IOException {
        try (ServerSocket door = new ServerSocket()) {
            door.bind(addresses("--listen", place).getFirst());
            log.println("kvperf: listening at " + door.getInetAddress().getHostAddress() + ":" + door.getLocalPort());
            while (true) {
                try (Socket socket = door.accept()) {
                    serve(socket, log);
                }
            }
        }
    }

    private static void serve(Socket socket, PrintStream log) {
        String peer = socket.getInetAddress().getHostAddress();
        try {
            socket.setSoTimeout(CONNECT_LIMIT_MILLIS);
            KvPerfOptions options = KvPerfOptions.parse(arguments(socket));
            socket.setSoTimeout(0);
            socket.setTcpNoDelay(true);
            log.println("kvperf: a run for " + peer + " over " + options.transport());
            KvPerfTarget.run(options, new ControlPipe(socket.getInputStream(), socket.getOutputStream()));
        } catch (IOException | IllegalArgumentException | IllegalStateException e) {
            log.println("kvperf: the run for " + peer + " ended: " + e.getMessage());
        }
    }

    private static String[] arguments(Socket socket) throws IOException {
        DataInputStream in = new DataInputStream(socket.getInputStream());
        int greeting = in.readInt();
        int count = greeting == GREETING ? in.readInt() : -1;
        if (count < 0 || count > ARGUMENTS_MAX) {
            throw new IllegalArgumentException("what dialled is no kvperf of this build");
        }
        String[] arguments = new String[count];
        for (int i = 0; i < count; i++) {
            arguments[i] = in.readUTF();
        }
        return arguments;
    }

    private static List<InetSocketAddress> addresses(String option, String place) throws IOException {
        int colon = place.lastIndexOf(':');
        try {
            int port = Integer.parseInt(place.substring(colon + 1));
            if (colon > 0 && port >= 0 && port < 1 << 16) {
                return Arrays.stream(InetAddress.getAllByName(place.substring(0, colon)))
                        .map(found -> new InetSocketAddress(found, port))
                        .toList();
            }
        } catch (NumberFormatException e) {
            // Falls through to the one sentence for both cases.
        }
        throw new IllegalArgumentException(option + " is \"" + place + "\", expected HOST:PORT");
    }
}
