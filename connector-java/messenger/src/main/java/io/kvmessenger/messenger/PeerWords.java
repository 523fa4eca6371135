package io.kvmessenger.messenger;

/** A peer's sentence made fit to be shown here: one line, of limited length. Pure. */
final class PeerWords {
    static final int SENTENCE_LENGTH_MAX = 1024;

    private static final String CUT = " …";

    private PeerWords() {}

    static String fit(String sentence) {
        String cut = sentence.length() <= SENTENCE_LENGTH_MAX
                ? sentence
                : sentence.substring(0, SENTENCE_LENGTH_MAX - CUT.length()) + CUT;
        StringBuilder line = new StringBuilder(cut.length());
        cut.chars().forEach(c -> line.append(Character.isISOControl(c) ? ' ' : (char) c));
        return line.toString();
    }
}
