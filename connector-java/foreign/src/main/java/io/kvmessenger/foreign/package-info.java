/** All FFM calls of the project: bindings only, no policy. The only package with native access. */
package io.kvmessenger.foreign;
