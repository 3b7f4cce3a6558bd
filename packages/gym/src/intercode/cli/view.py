"""View runs in the browser, even while they are running.

Only this machine can open the page, by an address with a token. The option --open passes the
address to the browser in a file that only you can read. Without RUN, the page shows all runs below
runs/, and new ones when they start.

Examples:
  intercode view
  intercode view runs/20250101-120000-bash-oracle runs/other
  intercode view runs/sweep --open
  intercode view RUN --hide-gold       (omits everything that may quote gold, even from saved pages)
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import webbrowser
from pathlib import Path

from intercode.cli.terminal import output
from intercode.errors import UsageError
from intercode.spec import port


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "run", type=Path, nargs="*", metavar="RUN", help="a run's folder, or a folder of runs"
    )
    parser.add_argument(
        "--port", type=port, default=0, help="port of the server (default: any free one)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--hide-gold", action="store_true", help="omit everything that may quote gold"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="read the data files that the runs name, so the page shows their tasks (no code of a "
        "run is executed)",
    )
    parser.add_argument("--json", action="store_true", help="print the address as a line of JSON")


def execute(args: argparse.Namespace) -> int:
    """Print the page's address, and serve it until the user presses Ctrl-C; return exit code 0.

    Raises:
        UsageError: The folder ``runs/`` does not exist, or the port is not available.
    """
    from intercode.report.live_runs import ViewerRuns
    from intercode.report.server import LOOPBACK, RunViewerServer

    folders = args.run or [Path("runs")]
    if not args.run and not folders[0].is_dir():
        raise UsageError("the working directory has no folder runs/: name the folders of runs")
    library = ViewerRuns(folders, hide_gold=args.hide_gold, trust=args.trust)
    try:
        viewer = RunViewerServer(library, args.port)
    except OSError as error:
        raise UsageError(
            f"--port {args.port}: cannot listen at {LOOPBACK}: {error.strerror}"
        ) from None
    message = json.dumps({"url": viewer.url}) if args.json else f"{viewer.url}\nCtrl-C ends it."
    print(message, file=output(), flush=True)
    with tempfile.TemporaryDirectory(prefix="intercode-view-") as folder:
        if args.open:
            _open(viewer.url, Path(folder) / "view.html")
        try:
            viewer.serve()
        except KeyboardInterrupt:
            print()
    return 0


def _open(url: str, link: Path) -> None:
    """Write a file that redirects to an address, and open the file in a browser.

    The address contains a token, so it must not be an argument of the browser's process: ``ps``
    shows the arguments of processes to all users.

    Args:
        url: The address, with the token.
        link: The path of the file, in a folder that only this user can read.
    """
    link.write_text(
        '<!doctype html><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">intercode view</a>',
        encoding="ascii",
    )
    argument = link.resolve().as_uri()
    threading.Thread(target=webbrowser.open, args=(argument,), daemon=True).start()
