/** The contract of the TransferEngine as a test suite that every transport inherits. */
package io.kvmessenger.testkit.transfer;
