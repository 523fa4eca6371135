/**
 * What a decoder needs besides KV, and which of a prompt's tokens the two sides compute.
 *
 * <p>Pure values and functions: no I/O, no threads, no bytes; safe from any thread. A {@link
 * io.kvmessenger.specdecode.ContextKind} names what goes beside the KV (a first token, logits, hidden states that a draft
 * begins with), {@link io.kvmessenger.specdecode.ContextKinds} all kinds of a side, and {@link
 * io.kvmessenger.specdecode.ContextChoice} those that go with one transfer. {@link io.kvmessenger.specdecode.ContextSlots}
 * says where in a memory the rows of a kind lie. {@link io.kvmessenger.specdecode.LastTokenRule} says up to which token a
 * prefiller computes a prompt, and where its decoder goes on.
 *
 * <p>What the rows hold, and how they get there, is not known here.
 */
package io.kvmessenger.specdecode;
