"""`MediaConnector`: the bytes of any URL, and nothing else.

Transport only: schemes, allow lists, addresses, caps, redirects, retries, deadlines. Knows nothing
of formats; which decoder serves an item is decided above and handed in. Raises nothing but
`SafelightError`, and no error names a URL, a path or an address.
"""

from __future__ import annotations

from safelight.connector.connector import MediaConnector
from safelight.connector.registry import (
    MEDIA_CONNECTOR_REGISTRY,
    MediaConnectorRegistry,
)

__all__ = ["MEDIA_CONNECTOR_REGISTRY", "MediaConnector", "MediaConnectorRegistry"]
