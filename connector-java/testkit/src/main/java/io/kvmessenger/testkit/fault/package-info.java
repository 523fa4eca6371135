/** Faults that end-to-end tests put between a messenger and its transfer engine; none of them is in the wheel. */
package io.kvmessenger.testkit.fault;
