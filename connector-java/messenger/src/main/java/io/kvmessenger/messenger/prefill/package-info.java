/** The sending side: prompts, grants, and the writes that carry their KV. */
package io.kvmessenger.messenger.prefill;
