package io.kvmessenger.messenger.session;

/** Sanitises a peer's sentence for display here: one line of limited length. Pure. */
public final class PeerText {
    public static final int SENTENCE_LENGTH_MAX = 1024;

    private static final String CUT = " …";

    private PeerText() {}

    public static String oneLine(String sentence) {
        String cut = sentence.length() <= SENTENCE_LENGTH_MAX
                ? sentence
                : wholeCharacters(sentence, SENTENCE_LENGTH_MAX - CUT.length()) + CUT;
        StringBuilder line = new StringBuilder(cut.length());
        cut.chars().forEach(c -> line.append(Character.isISOControl(c) ? ' ' : (char) c));
        return line.toString();
    }

    /** At most the first {@code lengthMax} characters; splits no surrogate pair, half of which could not be encoded. */
    private static String wholeCharacters(String sentence, int lengthMax) {
        return sentence.substring(
                0, Character.isHighSurrogate(sentence.charAt(lengthMax - 1)) ? lengthMax - 1 : lengthMax);
    }
}
