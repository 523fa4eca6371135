/** The engine behind the TransferEngine interface: its worker, its tables, and the factory that opens one. */
package io.kvmessenger.transfer.engine;
