/** The engine behind the TransferEngine interface: its workers, its tables, and the factory that opens one. */
package io.kvmessenger.transfer.engine;
