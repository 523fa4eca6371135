/** Device memory as engines allocate it, for tests. */
package io.kvmessenger.testkit.device;
