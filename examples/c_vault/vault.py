"""The vault: asks for the PIN, has pin.c compare it, and hands out the flag."""

import secrets
import socketserver
import subprocess
import sys

FLAG = sys.stdin.readline().encode()
PIN = str(secrets.randbelow(10**12)).zfill(12).encode()


class Vault(socketserver.StreamRequestHandler):
    def handle(self):
        entered = self.rfile.readline(60).strip()
        given = PIN + b"\n" + entered + b"\n"
        opens = subprocess.run(["/srv/vault/pin"], input=given).returncode == 0
        self.wfile.write(FLAG if opens else b"Wrong.\n")


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 5005), Vault).serve_forever()
