/** Agents, and the two ways to run one: on a thread of its own, or called by another. Knows nothing of transfers. */
package io.kvmessenger.transfer.agent;
