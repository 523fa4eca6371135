"""The package's version, which is that of the jar; defined here only."""

__version__ = "0.1.0"
