package io.kvmessenger.kvlayout;

/** The order of heads and tokens inside a page. A value, represented by its name in messages to Python and peers. */
public sealed interface PageLayout permits PageLayout.Hnd, PageLayout.Nhd, PageLayout.Latent {
    PageLayout HND = new Hnd();
    PageLayout NHD = new Nhd();
    PageLayout LATENT = new Latent();

    /** Stable: part of the geometry's wire form and of its digest. */
    String name();

    /** Heads, then tokens: a head range of a page is one contiguous run. The inside of a head is opaque. */
    record Hnd() implements PageLayout {
        @Override
        public String name() {
            return "HND";
        }
    }

    /** Tokens, then heads: a head range of a page is one run per token. */
    record Nhd() implements PageLayout {
        @Override
        public String name() {
            return "NHD";
        }
    }

    /** Compressed KV without heads (MLA): every TP rank holds the same bytes, and pages are sent whole. */
    record Latent() implements PageLayout {
        @Override
        public String name() {
            return "LATENT";
        }
    }

    /** The layout with that {@link #name}. */
    static PageLayout parse(String name) {
        return switch (name) {
            case "HND" -> HND;
            case "NHD" -> NHD;
            case "LATENT" -> LATENT;
            default ->
                throw new IllegalArgumentException(
                        "layout is \"" + name
                                + "\", expected HND, NHD or LATENT: choose a KV cache layout of the engine that is one of them");
        };
    }
}
