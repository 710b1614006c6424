"""`MEDIA_CONNECTOR_REGISTRY`: connectors by name, so that a server can be told to use another.

Owns the names. A plug-in is a class that takes the keywords of `MediaConnector`, tolerates those
it does not know, hands every decoder it is given to ``load_from_url(_async)`` and returns refs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from safelight.errors import ConfigurationError

__all__ = ["MEDIA_CONNECTOR_REGISTRY", "MediaConnectorRegistry"]

C = TypeVar("C", bound=type)


class MediaConnectorRegistry:
    """Connector classes by name."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Return a class decorator that makes its class known as `name`; the last one wins."""

        def remember(cls: C) -> C:
            self._classes[name] = cls
            return cls

        return remember

    def load(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return a new connector of the class known as `name`.

        Raises:
            ConfigurationError: No class is known by that name.
        """
        cls = self._classes.get(name)
        if cls is None:
            known = ", ".join(sorted(self._classes))
            raise ConfigurationError(f"no media connector has this name; known are: {known}")
        return cls(*args, **kwargs)


MEDIA_CONNECTOR_REGISTRY = MediaConnectorRegistry()
