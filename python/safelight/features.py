"""What is inside of this build: versions of native libraries, and vector instructions.

Owns the name; the answers are the libraries' own (``rust/pixels/src/features.rs``).
"""

from __future__ import annotations

from safelight._safelight import features

__all__ = ["features"]
