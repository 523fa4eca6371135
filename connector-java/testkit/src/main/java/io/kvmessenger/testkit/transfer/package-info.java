/** The contract of the TransferEngine as a suite that every transport inherits. */
package io.kvmessenger.testkit.transfer;
