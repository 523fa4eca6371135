/** The receiving side: fetches, the windows they open, and the proof that nothing writes any more. */
package io.kvmessenger.messenger.decode;
