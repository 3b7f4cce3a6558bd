"""The first hour, from the wheel: what the README and the messages say is typed, and works."""

from __future__ import annotations

from first_hour.conftest import Someone


def test_a_run_and_what_it_shows(someone: Someone) -> None:
    assert someone.run("intercode", "--version").stdout.startswith("intercode ")
    assert "Sandboxes can be used" in someone.run("intercode", "doctor").stdout
    said = someone.run("intercode", "run", "bash", "--limit", "3", "--quiet", "--out", "runs/a")
    assert "100.0 %" in said.stdout
    assert "submitted" in someone.run("intercode", "show", "runs/a").stdout
