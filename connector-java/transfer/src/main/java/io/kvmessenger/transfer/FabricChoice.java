package io.kvmessenger.transfer;

import io.kvmessenger.foreign.FfmLibFabric;

/**
 * Selects the libfabric library and provider.
 *
 * @param library its path, or a name for the loader; empty for the installed one
 * @param provider its name in {@code fi_info}; empty for libfabric's first provider that meets the requirements
 */
public record FabricChoice(String library, String provider) {
    public FabricChoice {
        library = library.isEmpty() ? FfmLibFabric.DEFAULT_NAME : library;
    }

    /** The installed library, with the provider that libfabric prefers. */
    public static FabricChoice installed() {
        return new FabricChoice("", "");
    }
}
