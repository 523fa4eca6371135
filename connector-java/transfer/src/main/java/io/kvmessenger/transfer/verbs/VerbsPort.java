package io.kvmessenger.transfer.verbs;

/**
 * One port of a device that is open: where queue pairs are made. A value.
 *
 * @param device its name
 * @param context the device, opened
 * @param gidIndex of the address that is used, in the port's table
 * @param gid that address
 * @param mtu the longest packet that it takes, as verbs encode it
 * @param messageMaxBytes the longest write that it takes
 * @param pairEntries requests that one queue may hold
 * @param queueEntries completions that one queue may hold
 */
record VerbsPort(
        String device,
        long context,
        int number,
        boolean ethernet,
        int lid,
        int gidIndex,
        byte[] gid,
        int mtu,
        long messageMaxBytes,
        int pairEntries,
        int queueEntries) {}
