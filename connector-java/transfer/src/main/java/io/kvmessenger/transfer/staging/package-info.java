/** What goes through page-locked host memory where a transport does not reach a device's: gathered, written, landed, copied. */
package io.kvmessenger.transfer.staging;
