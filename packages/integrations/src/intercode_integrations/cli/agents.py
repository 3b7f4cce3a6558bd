"""Install, list and remove external command-line agents.

An agent is installed as a layer over the image of a task. The layer is built in a sandbox that
reaches only the package index; install scripts of packages run only if the agent needs them.

Examples:
  intercode agents list
  intercode agents install codex
  intercode agents install claude-code codex --json
  intercode agents remove codex
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from intercode.cli.parser import add_action
from intercode.cli.terminal import print_json, safe, size, table
from intercode_integrations.external_agents import agent_layers
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.images.base import Progress


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``intercode agents`` to a parser."""
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_action(subparsers, "list", "list the agents and their state")
    install_parser = add_action(subparsers, "install", "build the layers of agents")
    install_parser.add_argument(
        "name", nargs="+", help="an agent's name, from 'intercode agents list'"
    )
    install_parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    remove_parser = add_action(subparsers, "remove", "remove the layers of agents")
    remove_parser.add_argument("name", nargs="+", help="an agent's name")


def execute(args: argparse.Namespace) -> int:
    """Run the action that the command line names, and return the exit code."""
    {"list": _list, "install": _install, "remove": _remove}[args.action](args)
    return 0


def _list(args: argparse.Namespace) -> None:
    entries = [
        (recipe, agent_layers.installed_layer(recipe)) for recipe in agent_layers.recipes().values()
    ]
    if args.json:
        agents = [
            {**_to_record(recipe), "installed": _to_record(layer) if layer else None}
            for recipe, layer in entries
        ]
        print_json({"folder": str(cache_root() / "agents"), "agents": agents})
        return
    rows = [
        (
            recipe.name,
            recipe.version,
            recipe.licence,
            recipe.install.source,
            size(layer.size) if layer else "",
            "installed" if layer else "",
        )
        for recipe, layer in entries
    ]
    print(table(("agent", "version", "licence", "from", "size", ""), rows, left_columns=4))


def _install(args: argparse.Namespace) -> None:
    for name in args.name:
        agent_layers.find_recipe(name)  # an unknown name fails before any installation starts
    progress: Progress = (lambda line: None) if args.quiet else _show
    built_layers = [agent_layers.install(name, progress) for name in args.name]
    if args.json:
        print_json({"installed": [_to_record(layer) for layer in built_layers]})
        return
    for layer in built_layers:
        print(layer.name, layer.version, size(layer.size), safe(layer.path), sep="  ")


def _remove(args: argparse.Namespace) -> None:
    for name in args.name:
        agent_layers.find_recipe(name)
    removed_layers = [layer for layer in map(agent_layers.remove, args.name) if layer]
    if args.json:
        print_json({"removed": [_to_record(layer) for layer in removed_layers]})
        return
    for layer in removed_layers:
        print(f"removed {layer.name} {layer.version}, {size(layer.size)}")
    if not removed_layers:
        print("nothing was installed")


def _to_record(item: agent_layers.AgentLayerRecipe | agent_layers.AgentLayer) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(item)
    return record


def _show(line: str) -> None:
    print(safe(line), file=sys.stderr, flush=True)
