/** What a transport is to the engine: the port it serves, the queue it empties, the events it reports. */
package io.kvmessenger.transfer.spi;
