"""Weights that a trainer writes into servers which go on answering. Importing this package starts nothing."""
