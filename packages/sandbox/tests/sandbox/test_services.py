"""Services that start as root run: on every provider, with the capabilities that the docs name."""

from __future__ import annotations

import os
import shutil

import pytest

from intercode_sandbox import Limits, SandboxBackend, get_provider
from sources import ROOT
from waiting import PATIENCE

from . import Start

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for an ordinary user: there is no other user"
)
EXAMPLE = ROOT / "examples/nginx/Dockerfile"
MORE = "cron openssh-client openssh-server"
ORDINARY = ("chown", "dac_override", "fowner", "kill", "net_bind_service", "setgid", "setuid")
"""The capabilities of `docs/gym/own-tasks.md#tasks-on-services`."""
SERVICES = {
    "nginx": (
        "nginx; curl -sSf localhost | grep -o 'Welcome to nginx!' | head -n 1;"
        " stat -c %U /proc/[0-9]* | grep -m 1 www-data; nginx -qs reload 2> /dev/null;"
        " curl -sSf localhost > /dev/null; service nginx stop",
        "Welcome to nginx!\nwww-data\nStopping nginx: nginx.\n",
    ),
    "cron": (
        "mkfifo /tmp/said; chmod 666 /tmp/said;"
        " echo '@reboot www-data id -un > /tmp/said' > /etc/cron.d/one; cron; cat /tmp/said",
        "www-data\n",
    ),
    "sshd": (
        "useradd -m bob; mkdir -m 755 /run/sshd; mkdir -m 700 ~bob/.ssh ~/.ssh;"
        " ssh-keygen -q -N '' -t ed25519 -f ~/.ssh/id_ed25519;"
        " cp ~/.ssh/id_ed25519.pub ~bob/.ssh/authorized_keys; chown -R bob: ~bob/.ssh;"
        " /usr/sbin/sshd; ssh -q -o StrictHostKeyChecking=no -tt bob@localhost 'id -un; tty'"
        " < /dev/null | tr -d '\\r'",
        "bob\n/dev/pts/0\n",
    ),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example's packages and some more; of the cache, if another run has built it."""
    folder = tmp_path_factory.mktemp("services")
    packages = EXAMPLE.read_text().partition("COPY")[0]
    more = packages.partition("\n")[2].replace("curl nginx-light procps", MORE)
    assert MORE in more
    (folder / "Dockerfile").write_text(packages + more)
    spec = f"dockerfile:{folder}/Dockerfile"
    get_provider("native").digest(spec)  # the tests' Docker engine has no network
    return spec


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(start: Start, image: str, name: str) -> None:
    script, said = SERVICES[name]
    more = ("sys_chroot",) if name == "sshd" else ()
    sandbox = start(image, capabilities=(*ORDINARY, *more))
    done = sandbox.exec(["bash", "-euc", script])
    assert (done.stdout.decode(), done.exit_code) == (said, 0), done.stderr


def test_no_service_without(start: Start, image: str) -> None:
    assert b"Operation not permitted" in start(image).exec(["nginx"]).stderr


@pytest.mark.skipif(not shutil.which("mariadbd"), reason="not for MySQL: it is another")
def test_a_database() -> None:
    """This machine's MariaDB, which the tests of databases need, too."""
    sandbox = get_provider("native").start("host", Limits(timeout=PATIENCE, capabilities=ORDINARY))
    try:
        assert said_by_mariadb(sandbox) == b"root@localhost\nmysql\n"
    finally:
        sandbox.close()


def said_by_mariadb(sandbox: SandboxBackend) -> bytes:
    script = """
        echo 'mysql:x:101:101::/tmp:/bin/false' >> /etc/passwd
        mkdir -p /var/lib/mysql /run/mysqld; chown mysql /var/lib/mysql /run/mysqld
        at='--no-defaults --datadir=/var/lib/mysql --user=mysql'
        mariadb-install-db $at --skip-test-db --auth-root-authentication-method=normal > /dev/null
        mariadbd $at --skip-networking --socket=/run/mysqld/s --innodb-buffer-pool-size=8M &
        mariadb-admin --no-defaults -S /run/mysqld/s --wait=99 ping > /dev/null
        mariadb --no-defaults -S /run/mysqld/s -NBe "select user()"
        stat -c %U /proc/[0-9]* | grep -m 1 mysql
    """
    done = sandbox.exec(["bash", "-euc", script])
    assert done.ok, done.stderr + done.stdout
    return done.stdout
