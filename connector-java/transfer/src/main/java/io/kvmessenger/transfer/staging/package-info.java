/** Staging in page-locked host memory where a transport does not reach a device: gathered, written, landed, copied. */
package io.kvmessenger.transfer.staging;
