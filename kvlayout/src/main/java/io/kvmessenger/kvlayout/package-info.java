/** What a KV cache looks like, and which bytes go where. Pure values: no I/O, no threads, no dependencies. */
package io.kvmessenger.kvlayout;
