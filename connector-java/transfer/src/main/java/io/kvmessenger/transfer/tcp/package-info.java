/** Transport over plain sockets: built in, needs nothing; bytes land straight in the target pages. */
package io.kvmessenger.transfer.tcp;
