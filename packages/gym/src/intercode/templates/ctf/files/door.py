"""A service: who knows the word gets the flag, which comes on its standard input."""

import socketserver
import sys

FLAG = sys.stdin.readline()
WORD = "emases nepo"[::-1]


class Door(socketserver.StreamRequestHandler):
    """One visitor."""

    def handle(self) -> None:
        """Ask for the word."""
        said = self.rfile.readline(100).decode(errors="replace").strip()
        self.wfile.write(FLAG.encode() if said == WORD else b"The door stays shut.\n")


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 4000), Door).serve_forever()
