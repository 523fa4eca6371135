/** The subject "weights": a trainer writes a model into a host's landing, which the engine loads from between two steps. */
package io.kvmessenger.weights;
