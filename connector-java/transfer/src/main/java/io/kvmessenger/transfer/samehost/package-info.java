/** What transports within one host share: rings of immediates, mapped files, and how a target hands its memory over. */
package io.kvmessenger.transfer.samehost;
