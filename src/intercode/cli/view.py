"""View runs in the browser, also while they go on.

Only this machine can open the page, by an address that has a token. Without RUN, the runs below
runs/ are shown, and those that are begun there meanwhile.

Examples:
  intercode view
  intercode view runs/20250101-120000-bash-oracle runs/other
  intercode view runs/sweep --open
  intercode view RUN --hide-gold       (what may quote gold stays out, also of what is sent)
"""

from __future__ import annotations

import argparse
import json
import threading
import webbrowser
from pathlib import Path

from intercode.errors import UsageError
from intercode.spec import natural


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run", type=Path, nargs="*", metavar="RUN", help="a run's folder, or a folder of such"
    )
    parser.add_argument(
        "--port", type=natural, default=0, help="where it listens (default: any that is free)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--hide-gold", action="store_true", help="leave out all that may quote gold"
    )
    parser.add_argument("--json", action="store_true", help="print the address as a line of JSON")


def execute(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from intercode.report.live import Library
    from intercode.report.server import LOOPBACK, Viewer

    places = args.run or [Path("runs")]
    if not args.run and not places[0].is_dir():
        raise UsageError("there is no folder runs/ here: give the folders of runs")
    library = Library(places, hide_gold=args.hide_gold)
    try:
        viewer = Viewer(library, args.port)
    except OSError as error:
        raise UsageError(
            f"--port {args.port}: cannot listen at {LOOPBACK}: {error.strerror}"
        ) from None
    said = json.dumps({"url": viewer.url}) if args.json else f"{viewer.url}\nCtrl-C ends it."
    print(said, flush=True)
    if args.open:
        threading.Thread(target=webbrowser.open, args=(viewer.url,), daemon=True).start()
    try:
        viewer.serve()
    except KeyboardInterrupt:
        print()
    return 0
