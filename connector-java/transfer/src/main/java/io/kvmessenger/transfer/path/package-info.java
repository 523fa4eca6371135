/** What every transport's paths do alike from the request to the end: at the writer, and at the target. */
package io.kvmessenger.transfer.path;
