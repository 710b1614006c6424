"""Header probes: what an image is, from its first bytes, without a pixel.

Owns the names; the parsers are Rust's (``rust/core/src/probe``) and the functions are built-ins.
Must never decode, and never open a file that it was not given.
"""

from __future__ import annotations

from safelight._safelight import ImageHeader, NeedMoreBytes, probe, probe_files, probe_prefix

__all__ = ["ImageHeader", "NeedMoreBytes", "probe", "probe_files", "probe_prefix"]
