/** A transport over Unix stream sockets, as small as the contract allows: what the author of a new one has to write. */
package io.kvmessenger.testkit.stream;
