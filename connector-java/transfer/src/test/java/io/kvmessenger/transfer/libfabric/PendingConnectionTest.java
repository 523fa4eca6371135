package io.kvmessenger.transfer.libfabric;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.LibFabric;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

/** A connection to an endpoint that is being closed, which libfabric's provider over tcp has accepted and not heard of. */
final class PendingConnectionTest {
    private static final String PROVIDER = "net";
    private static final int TURNS = 1000;
    /** Of the family, before the port in an address. */
    private static final int PORT_OFFSET_BYTES = 2;

    /** In a process of its own, which ends by a signal if the endpoint is closed before the connection. */
    @Test
    void shouldEndBeforeItsEndpointDoes() throws IOException, InterruptedException {
        assumeFalse(System.getProperty("kvmessenger.libfabric", "").isEmpty(), "no libfabric");
        Process child = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "--enable-native-access=ALL-UNNAMED",
                        "-cp",
                        System.getProperty("java.class.path"),
                        PendingConnectionTest.class.getName())
                .redirectErrorStream(true)
                .start();
        String output = new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertThat(child.waitFor()).as(output).isZero();
    }

    public static void main(String[] arguments) throws IOException {
        LibFabric library = new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        InetAddress host = InetAddress.getLoopbackAddress();
        OpenFabric fabric = new OpenFabric(library, new FabricSearch(library, host).find(PROVIDER));
        FabricEndpoint other = new FabricEndpoint(fabric, TURNS);
        FabricEndpoint asked = new FabricEndpoint(fabric, TURNS);
        int port = Short.toUnsignedInt(ByteBuffer.wrap(asked.name().address()).getShort(PORT_OFFSET_BYTES));
        PartedEndpoints parted = new PartedEndpoints();
        try (SocketChannel connection = SocketChannel.open(new InetSocketAddress(host, port))) {
            progress(asked, other);
            parted.add(asked, 0);
            parted.poll(0);
            assertThat(connection.isConnected()).isTrue();
        }
        progress(other, other);
        assertThat(parted.poll(PartedEndpoints.WAIT_NS)).isFalse();
        progress(other, other);
        other.close();
        fabric.close();
    }

    private static void progress(FabricEndpoint one, FabricEndpoint other) {
        for (int turn = 0; turn < TURNS; turn++) {
            one.read();
            other.read();
        }
    }
}
