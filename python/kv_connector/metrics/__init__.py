"""The messenger's figures on an engine's own metrics page, independent of the engine."""
