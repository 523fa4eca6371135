/** What the transports within one host share: rings of immediates, mapped files, and the hand-over of memory. */
package io.kvmessenger.transfer.samehost;
