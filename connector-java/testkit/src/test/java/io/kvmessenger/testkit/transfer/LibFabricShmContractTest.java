package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;

/**
 * The whole contract over libfabric's provider for shared memory, which no engine is let use: while nothing dies it keeps it.
 *
 * <p>Each engine has a copy of the library, which the loader takes for another, as in processes of their own: what one library has
 * mapped for one endpoint of a process it uses for the others, and takes away from them too.
 */
final class LibFabricShmContractTest extends TransportContractTest {
    @TempDir
    private static Path copies;

    private static Path library;

    @BeforeAll
    static void look() {
        library = InstalledFabric.file();
        // Else a target copies out of the writer's memory when it gets to it.
        assertThat(System.getenv("FI_SHM_DISABLE_CMA")).isEqualTo("1");
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected DrivenEngine open(String name) {
        TransferOptions by = options()
                .with(LibFabricTransport.LIBRARY, copyFor(name).toString())
                .with(LibFabricTransport.PROVIDER, ShmByAnotherName.NAME);
        return new DrivenEngine(
                by, name, MEMORY_BYTES, TransferEngines.open(by, new FfmLibC(), ShmByAnotherName::load));
    }

    private static Path copyFor(String name) {
        Path copy = copies.resolve("libfabric-" + name + ".so");
        try {
            return Files.exists(copy) ? copy : Files.copy(library, copy);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
