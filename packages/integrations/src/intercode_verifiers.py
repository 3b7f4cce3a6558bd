"""The verifiers adapter under a name that verifiers can import: a top-level module without dots.

The framework verifiers searches for a plugin's name in its own packages first, and there a name
with dots raises an error. Therefore `intercode_integrations.verifiers` has this second name.
"""

from intercode_integrations.verifiers import InterCodeHarness, InterCodeRollouts, InterCodeTaskset

__all__ = ["InterCodeHarness", "InterCodeRollouts", "InterCodeTaskset"]
