/**
 * The TransferEngine: one-sided writes with 32-bit immediates, no order assumed, over several transports.
 *
 * <p>This package deals in bytes, regions and immediates. It knows nothing of KV caches, requests or inference engines;
 * the messenger translates.
 */
package io.kvmessenger.transfer;
