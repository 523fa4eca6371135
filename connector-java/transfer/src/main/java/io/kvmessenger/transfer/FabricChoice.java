package io.kvmessenger.transfer;

import io.kvmessenger.foreign.FfmLibFabric;

/**
 * Which libfabric is used, and what of it.
 *
 * @param library its path, or a name that the loader looks for; empty for what is installed
 * @param provider as {@code fi_info} calls it; empty for the first that libfabric offers and that does for this
 */
public record FabricChoice(String library, String provider) {
    public FabricChoice {
        library = library.isEmpty() ? FfmLibFabric.DEFAULT_NAME : library;
    }

    /** What is installed, and what libfabric prefers. */
    public static FabricChoice installed() {
        return new FabricChoice("", "");
    }
}
