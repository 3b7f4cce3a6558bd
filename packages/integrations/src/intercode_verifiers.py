"""The adapter for verifiers by a name that verifiers can import: without dots, beside the package.

It looks for a plugin in its own packages first, and there a name with dots is an error.
"""

from intercode_integrations.verifiers import InterCodeHarness, InterCodeRollouts, InterCodeTaskset

__all__ = ["InterCodeHarness", "InterCodeRollouts", "InterCodeTaskset"]
