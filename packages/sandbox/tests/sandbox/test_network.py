"""Policies for the network: what is listed can be reached, and nothing else by any means."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from intercode_sandbox import Provider, SandboxBackend, network
from intercode_sandbox.errors import UsageError
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.network import (
    AllowedHost,
    NetworkGate,
    NetworkPolicy,
    RefusedConnectionError,
    forbidden_reason,
    non_public_reason,
)

from . import Run, Start

pytestmark = pytest.mark.ordinary

PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"
"""Two servers of this machine's. The first stands for one of the internet."""


class _Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://{PRIVATE}:{self.server.server_address[1]}/")
            body = b""
        else:
            self.send_response(200)
            body = f"{self.server.server_address[0]} {self.headers['Host']} {self.path}".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of two web servers, on two addresses."""
    public = ThreadingHTTPServer((PUBLIC, 0), _Web)
    servers = [public, ThreadingHTTPServer((PRIVATE, public.server_port), _Web)]
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in servers]
    for thread in threads:
        thread.start()
    yield public.server_port
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


class Names:
    """A name server: name → the addresses that it gives, one after the other."""

    def __init__(self, **names: list[str]) -> None:
        self.names = {name.replace("_", "."): found for name, found in names.items()}
        self.asked: list[str] = []

    def __call__(self, name: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked.append(name)
        given = self.names.get(name)
        address = name if given is None else given.pop(0) if len(given) > 1 else given[0]
        return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> None:
    """One address of this machine's counts as public."""
    real = non_public_reason
    monkeypatch.setattr(network, "non_public_reason", lambda a: "" if str(a) == PUBLIC else real(a))


def admit(sandbox: SandboxBackend, *hosts: str, names: Names | None = None) -> NetworkGate:
    assert isinstance(sandbox, NativeSandbox)  # Docker's, too
    sandbox.admit(NetworkPolicy.parse(list(hosts)), names or Names())
    assert sandbox.gate is not None
    return sandbox.gate


def test_one_endpoint(provider: Provider, port: int) -> None:
    sandbox = provider.start("host", network=f"http://{PUBLIC}:{port}/v1")
    try:
        script = f"curl -s 127.0.0.1:{port}/a; curl -s --max-time 9 {PRIVATE}:{port + 1}"
        done = sandbox.exec(["bash", "-c", script])
        assert done.stdout.decode() == f"{PUBLIC} 127.0.0.1:{port} /a"
        assert not done.ok and "http_proxy" not in sandbox.env
    finally:
        sandbox.close()


@pytest.mark.usefixtures("internet")
@pytest.mark.defends("exfiltration")
def test_a_list_of_hosts(sandbox: SandboxBackend, sh: Run, port: int) -> None:
    names = Names(web_example_org=[PUBLIC], evil_org=[PUBLIC])
    gate = admit(sandbox, f"*.example.org:{port}", names=names)
    url = f"http://web.example.org:{port}"
    said = sh(f"curl -s {url}/a?b=c -H 'Host: evil.org'").stdout.decode()
    assert said == f"{PUBLIC} web.example.org:{port} /a?b=c"  # the URL's host, not the field's
    assert f" web.example.org:{port} /" in sh(f"curl -s --proxytunnel {url}/").stdout.decode()
    for other in (
        f"http://evil.org:{port}",
        f"http://example.org:{port}",
        "http://web.example.org",
    ):
        told = sh(f"curl -s -w %{{http_code}} {other}").stdout.decode()
        assert "cannot be reached from here: it is not in this sandbox's list" in told, other
        assert f"*.example.org:{port}" in told and told.endswith("403")
    assert sh("curl -s --proxytunnel http://evil.org:22").exit_code == 56
    assert names.asked == ["web.example.org"] * 2  # no name that is refused is looked up
    assert gate.refusal_counts == {
        f"evil.org:{port}: not listed": 1,
        f"example.org:{port}: not listed": 1,
        "web.example.org:80: not listed": 1,
        "evil.org:22: not listed": 1,
    }
    assert sandbox.changes() == []


@pytest.mark.usefixtures("internet")
@pytest.mark.defends("host leak")
def test_a_name_that_changes_its_address(sandbox: SandboxBackend, sh: Run, port: int) -> None:
    """What was checked is what is connected to: each connection asks once."""
    names = Names(a_example_org=[PUBLIC, PRIVATE])
    gate = admit(sandbox, f"a.example.org:{port}", names=names)
    first, then = (sh(f"curl -s http://a.example.org:{port}/").stdout.decode() for _ in range(2))
    assert first.startswith(PUBLIC) and "its name leads to a private address" in then
    assert names.asked == ["a.example.org"] * 2 and PRIVATE not in then
    assert gate.refusal_counts == {f"a.example.org:{port}: a private address": 1}


@pytest.mark.usefixtures("internet")
@pytest.mark.defends("host leak")
def test_a_redirect_and_other_spellings(sandbox: SandboxBackend, sh: Run, port: int) -> None:
    admit(sandbox, f"{PUBLIC}:{port}")
    assert sh(f"curl -s http://{PUBLIC}:{port}/").stdout.startswith(PUBLIC.encode())
    assert not sh(f"curl -sfL http://{PUBLIC}:{port}/away").ok
    for spelt in ("2130706433", "0x7f000001", "127.1", "[::ffff:127.0.0.1]", "localhost."):
        code = sh(f"curl -s --noproxy '' -o /dev/null -w %{{http_code}} http://{spelt}:{port}/")
        assert code.stdout == b"403", spelt


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("GET / HTTP/1.1\\r\\nHost: a.org\\r\\n\\r\\n", "400 Bad Request"),
        ("GET ftp://a.org/ HTTP/1.1\\r\\n\\r\\n", "400 Bad Request"),
        ("CONNECT a.org HTTP/1.1\\r\\n\\r\\n", "400 Bad Request"),
        ("CONNECT a.org:0 HTTP/1.1\\r\\n\\r\\n", "400 Bad Request"),
        ("GET http://a.org/ HTTP/1.1\\r\\nA: b\\rHost: c\\r\\n\\r\\n", "400 Bad Request"),
        ("GET http://a.org/ HTTP/1.1\\r\\nA : b\\r\\n\\r\\n", "400 Bad Request"),
        ("CONNECT x@a.org:80 HTTP/1.1\\r\\n\\r\\n", "403 Forbidden"),
        ("CONNECT a.org.:80 HTTP/1.1\\r\\n\\r\\n", "502 Bad Gateway"),
        ("CONNECT *.b.org:80 HTTP/1.1\\r\\n\\r\\n", "403 Forbidden"),
        ("CONNECT %s.b.org:80 HTTP/1.1\\r\\n\\r\\n" % ("a" * 60_000), "403 Forbidden"),
        ("x" * 70_000, "400 Bad Request"),
    ],
)
def test_hostile_requests(sandbox: SandboxBackend, sh: Run, sent: str, said: str) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        raise socket.gaierror(-2, "Name or service not known")

    assert isinstance(sandbox, NativeSandbox)
    sandbox.admit(NetworkPolicy.parse("a.org,*.b.org"), resolve)
    sandbox.write_file("/tmp/sent", sent.replace("\\r", "\r").replace("\\n", "\n").encode())
    done = sh("exec 3<>/dev/tcp/127.0.0.1/3128; cat /tmp/sent >&3 & timeout 60 head -n 1 <&3")
    assert said in done.stdout.decode()


def test_a_flood_of_names_is_counted_together() -> None:
    gate = NetworkGate(NetworkPolicy.parse(["a.org"]))
    for number in range(500):
        with pytest.raises(RefusedConnectionError):
            gate.connect_to_host(f"{number}\n\x1b.evil.org", 443)
    assert len(gate.refusal_counts) == 101 and gate.refusal_counts["(others)"] == 400
    assert "0??.evil.org:443: not listed" in gate.refusal_counts


def test_a_host_that_does_not_answer_is_not_counted_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: object) -> None:
        raise TimeoutError("timed out")  # as by a socket's own time limit: without a number

    def resolve(name: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in (PRIVATE, PUBLIC)]

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(network, "non_public_reason", lambda a: "" if str(a) == PUBLIC else "bad")
    gate = NetworkGate(NetworkPolicy.parse(["a.org"]), resolve)
    with pytest.raises(TimeoutError):
        gate.connect_to_host("a.org", 443)
    assert not gate.refusal_counts


@pytest.mark.defends("host leak")
@pytest.mark.parametrize(
    "text",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
        ),
        *("169.254.169.254", "168.63.129.16", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "198.18.0.1", "::", "::1", "fe80::1", "fd00:ec2::254", "fc00::1"),
        *("ff02::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:a00:1::"),
        *("::7f00:1", "fec0::1", "::ffff:0:10.0.0.1", "2606:4700::5efe:10.0.0.1"),
    ],
)
def test_no_public_address(text: str) -> None:
    assert non_public_reason(ipaddress.ip_address(text))


@pytest.mark.defends("host leak")
@pytest.mark.parametrize(
    "text",
    [
        *("169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
        *("fd00:ec2::254", "fd00:ec2::23", "fd00:ec2::254%lo", "fd20:ce::254", "fd20:ce::254%1"),
        *("fd00:c1::a9fe:a9fe", "fd00:42::42", "fe80::a9fe:a9fe"),
        # What stands for IPv4: mapped, translated, compatible, NAT64, 6to4, ISATAP.
        *("::ffff:192.0.0.192", "::ffff:0:192.0.0.192", "::192.0.0.192", "64:ff9b::192.0.0.192"),
        *("64:ff9b:1::192.0.0.192", "2002:c000:c0::1", "2606:4700::5efe:192.0.0.192"),
        *("::ffff:169.254.1.1", "::ffff:0:169.254.1.1", "2606:4700::200:5efe:169.254.1.1"),
        # NAT64 with a prefix of the network's own, of each length.
        *("2606:4700:c000:c0::", "2606:4700:64c0:0:c0::", "2606:4700:64:c000:0:c000::"),
        *("2606:4700:64:c0:0:c0::", "2606:4700:64:1:c0:0:c000:0", "2606:4700::192.0.0.192"),
    ],
)
def test_no_cloud_metadata(text: str) -> None:
    """Not even where it is named, nor by an address of IPv6 that stands for one."""
    assert forbidden_reason(ipaddress.ip_address(text))


def test_public_addresses() -> None:
    for text in (
        *("1.1.1.1", "93.184.216.34", "192.0.1.192", "2606:4700::1111", "64:ff9b::101:101"),
        *("2606:4700::5efe:1.1.1.1", "2606:4700:c000:c1::"),
    ):
        assert not non_public_reason(ipaddress.ip_address(text)), text


def test_an_address_of_this_machine_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it looks like one: what listens on all addresses is reached by it."""
    monkeypatch.setattr(ipaddress.IPv4Address, "is_global", property(lambda _: True))
    assert non_public_reason(ipaddress.ip_address("127.0.0.1")) == "an address of this machine"


@pytest.mark.parametrize(
    "text", ["169.254.169.254:80", "[fd00:ec2::254]:80", "192.0.0.192:80", "224.0.0.1:1"]
)
@pytest.mark.parametrize("many", [True, False])
def test_some_addresses_cannot_be_listed(text: str, many: bool) -> None:
    assert forbidden_reason(ipaddress.ip_address(text.rpartition(":")[0].strip("[]")))
    with pytest.raises(UsageError, match="sandboxes must not reach"):
        NetworkPolicy.parse([text, "a.org"] if many else text)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (False, NetworkPolicy()),
        (True, NetworkPolicy(shared=True)),
        ([], NetworkPolicy()),
        ("127.0.0.1:8000", NetworkPolicy(endpoints=(("127.0.0.1", 8000),))),
        ("http://localhost:8000/v1", NetworkPolicy(endpoints=(("localhost", 8000),))),
        ("db.corp:5432", NetworkPolicy(endpoints=(("db.corp", 5432),))),
        ("[::1]:80", NetworkPolicy(endpoints=(("::1", 80),))),
        ("http://a.org", NetworkPolicy(endpoints=(("a.org", 80),))),
        ("https://A.org/v1", NetworkPolicy(hosts=(AllowedHost("a.org", 443),))),
        ("pypi.org", NetworkPolicy(hosts=(AllowedHost("pypi.org"),))),
        ("a.org, *.B.org.", NetworkPolicy(hosts=(AllowedHost("a.org"), AllowedHost("*.b.org")))),
        (
            ["a.org:81", "[::1]:8000"],
            NetworkPolicy(False, (("::1", 8000),), (AllowedHost("a.org", 81),)),
        ),
    ],
)
def test_policies(given: Any, policy: NetworkPolicy) -> None:
    assert NetworkPolicy.parse(given) == policy


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "not the name of a host"),
        ("bash", "'bash' is not a host: give HOST:PORT, a URL, or comma-separated names"),
        ("*", "not the name"),
        ("*.org", "too wide"),
        ("a..org", "not the name"),
        ("a b.org", "not the name"),
        ("bücher.example", "not the name"),
        ("10.0.0.1", "give the port of an address, as 10.0.0.1:443"),
        ("a.org:99999", "from 1 to 65535"),
        ("ftp://a.org", "a URL begins with http:// or https://"),
        ("http://me:secret@a.org", "a URL begins with http:// or https://"),
        (["a.org", 5], "a host is a text, not 5"),
        ("localhost:8000,127.0.0.1:8000", "two endpoints have the port 8000"),
    ],
)
def test_malformed_policies(start: Start, provider: Provider, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        provider.start("host", network=given)
