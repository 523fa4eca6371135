/** A subject without KV, by which tests show that links, sessions and the duty cycle know none. */
package io.kvmessenger.testkit.echo;
