"""``Settings``, which scripts hand to ``RayExecutor``."""

from __future__ import annotations

import types

__all__ = ["Settings"]


class Settings(types.SimpleNamespace):
    """Whatever settings it is made with; RayExecutor reads those that it knows."""
