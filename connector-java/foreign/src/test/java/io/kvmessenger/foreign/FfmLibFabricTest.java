package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

final class FfmLibFabricTest {
    @Test
    void shouldSayInOneLineWhyThereIsNone() {
        assertThatThrownBy(() -> new FfmLibFabric("libfabric-that-nothing-has.so.1"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContainingAll("libfabric-that-nothing-has.so.1", "cannot open shared object file")
                .hasMessageNotContaining("\n");
    }

    @Test
    void shouldSayWhatALibraryLacks() {
        assertThatThrownBy(() -> new FfmLibFabric("libc.so.6"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContaining("fi_version");
    }

    /** What an object's provider does not have is not called: neither where its table ends before, nor where it has a null. */
    @Test
    void shouldRefuseOperationsThatATableDoesNotHave() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment table = arena.allocate(256, 8);
            MemorySegment object = arena.allocate(64, 8);
            object.fill((byte) 0);
            long address = object.address();
            object.set(ValueLayout.ADDRESS, FabricLayout.EP_RMA, table);
            object.set(ValueLayout.ADDRESS, FabricLayout.FID_OPS, table);
            LibFabric library = installed();
            for (long size : new long[] {FabricLayout.OPS_CLOSE, 256}) {
                table.fill((byte) 0);
                table.set(ValueLayout.JAVA_LONG, FabricLayout.OPS_SIZE, size);
                if (size < 256) {
                    table.asSlice(8).fill((byte) 1);
                }
                assertThat(library.fi_close(address)).isEqualTo(-Errno.ENOSYS);
                assertThat(library.fi_writedata(address, 0, 0, 0, 0, 0, 0, 0, 0))
                        .isEqualTo(-Errno.ENOSYS);
            }
        }
    }

    @Test
    void shouldSpeakAsOldAnApiAsThisProjectAsksFor() {
        assertThat(installed().fi_version()).isGreaterThanOrEqualTo(FabricApi.VERSION);
    }

    @Test
    void shouldSayWhatAnErrorIs() {
        assertThat(installed().fi_strerror(FabricApi.FI_EAVAIL)).isNotEmpty().doesNotContain("\n");
    }

    private static LibFabric installed() {
        try {
            return new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            assumeTrue(
                    false,
                    e.getMessage()
                            + ": -Dkvmessenger.libfabric names no folder of it, examples/setup/find-libfabric does");
            throw e;
        }
    }
}
