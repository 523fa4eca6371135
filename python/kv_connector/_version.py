"""The one place for the package's version; the same as the jar's."""

__version__ = "0.1.0"
