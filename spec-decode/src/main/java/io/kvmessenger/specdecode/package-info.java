/**
 * What a decoder needs besides KV, and which of a prompt's tokens the two sides compute.
 *
 * <p>Pure values and functions: no I/O, no threads, no bytes; safe from any thread. A
 * {@link io.kvmessenger.specdecode.ContextKind} describes data that goes with the KV (a first token, logits, hidden
 * states that a draft begins with), {@link io.kvmessenger.specdecode.ContextKinds} all kinds of a side, and
 * {@link io.kvmessenger.specdecode.ContextChoice} those that go with one transfer.
 * {@link io.kvmessenger.specdecode.ContextSlots} gives the location of a kind's rows in a memory.
 * {@link io.kvmessenger.specdecode.LastTokenRule} determines up to which token a prefiller computes a prompt, and where
 * its decoder continues.
 *
 * <p>The rows' content and transport are not known here.
 */
package io.kvmessenger.specdecode;
