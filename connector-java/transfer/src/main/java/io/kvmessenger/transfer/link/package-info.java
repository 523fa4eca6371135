/** The one control socket that an engine has to each peer: dialling, listening, who is who, and the paths of domains. */
package io.kvmessenger.transfer.link;
