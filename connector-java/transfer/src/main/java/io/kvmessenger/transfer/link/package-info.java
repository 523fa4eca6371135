/** The single control socket to each peer: dialling, listening, authentication, and the paths of domains. */
package io.kvmessenger.transfer.link;
