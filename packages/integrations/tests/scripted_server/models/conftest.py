"""Keys that are none, as in the gym's tests of models."""

from __future__ import annotations

from models.conftest import keys as keys
