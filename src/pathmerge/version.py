"""The version, apart from everything that takes time to import."""

__version__ = "0.1.0"
