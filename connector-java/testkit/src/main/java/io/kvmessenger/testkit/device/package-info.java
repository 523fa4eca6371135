/** Memory of devices as engines have it, for tests. */
package io.kvmessenger.testkit.device;
