/** The content of frames: the generated messages, and their conversions. Pure. */
package io.kvmessenger.messenger.wire;
