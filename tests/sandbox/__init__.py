"""The specification of a sandbox, as tests: a provider is done when it passes all of them."""

from __future__ import annotations

from collections.abc import Callable

from intercode.sandbox import Completed, Sandbox

Start = Callable[..., Sandbox]
"""The fixture `start`: an image, and limits by keyword."""
Run = Callable[..., Completed]
"""The fixture `sh`: a script, and the options of `exec`."""
