"""The version, in one place that needs no imports."""

__version__ = "0.1.0"
