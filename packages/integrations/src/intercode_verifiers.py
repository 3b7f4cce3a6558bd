"""The verifiers adapter under a name that verifiers can import: a top-level module without dots.

verifiers searches for a plugin in its own packages first, and a name with dots is an error there.
"""

from intercode_integrations.verifiers import InterCodeHarness, InterCodeRollouts, InterCodeTaskset

__all__ = ["InterCodeHarness", "InterCodeRollouts", "InterCodeTaskset"]
