package io.kvmessenger.weights;

import com.google.protobuf.ByteString;

/**
 * A version that a sender has announced to a host. A value.
 *
 * @param id the sender's name of it
 * @param contentDigest of all bytes of the landing
 */
record Update(long id, long version, ByteString contentDigest, HostSession sender) {}
