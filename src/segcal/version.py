"""The version, read by the build and written into every saved calibrator."""

__version__ = "0.2.0.dev0"
