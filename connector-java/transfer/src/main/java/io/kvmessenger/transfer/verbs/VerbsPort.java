package io.kvmessenger.transfer.verbs;

/**
 * One port of an open RDMA device, on which queue pairs are created. A value.
 *
 * @param device name of the device
 * @param context handle of the open device
 * @param gidIndex index of {@code gid} in the port's table
 * @param gid the address that is used
 * @param mtu longest packet, as encoded by verbs
 * @param messageMaxBytes longest write
 * @param pairEntries capacity of one work queue
 * @param queueEntries capacity of one completion queue
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
