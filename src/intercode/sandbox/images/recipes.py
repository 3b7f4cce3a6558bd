"""Images by name: a table."""

from __future__ import annotations

from intercode.sandbox.images.base import SEARCH_PATH
from intercode.sandbox.images.debian import System

# What the recorded runs of the 2023 release show of its image (Ubuntu 22.04, which no archive keeps
# as it was): its programs, the names in its root, and an environment without a locale.
_NL2BASH_FINISH = """\
rm -rf /tmp /mnt
mkdir -p /usr/lib32 /usr/libx32
ln -sfn usr/lib32 /lib32
ln -sfn usr/libx32 /libx32

# The account that Ubuntu gives another name.
sed -i 's/^ssh:/_ssh:/' /etc/group /etc/gshadow

ln -sfn /proc/mounts /etc/mtab
printf 'nameserver 127.0.0.1\\n' >/etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
{
  echo '# symbolic names for networks, see networks(5) for more information'
  echo 'link-local 169.254.0.0'
} >/etc/networks
{
  printf '127.0.0.1\\tlocalhost\\n'
  printf '::1\\tlocalhost ip6-localhost ip6-loopback\\n'
  printf 'fe00::0\\tip6-localnet\\nff00::0\\tip6-mcastprefix\\n'
  printf 'ff02::1\\tip6-allnodes\\nff02::2\\tip6-allrouters\\n'
  printf '172.17.0.2\\t%s\\n' "$(cat /etc/hostname)"
} >/etc/hosts

: >/.dockerenv
chmod 755 /.dockerenv
for name in bin boot dev etc home lib media opt proc root run sbin srv sys usr var .dockerenv; do
  echo "$name"
done >/.gitignore
git -c init.defaultBranch=master init -q /

# The stub of a minimized Ubuntu.
cat >/usr/bin/man <<'STUB'
#!/bin/sh
echo "This system has been minimized by removing packages and content that are"
echo "not required on a system that users do not log into."
echo ""
echo "To restore this content, including manpages, you can run the 'unminimize'"
echo "command. You will still need to ensure the 'man-db' package is installed."
STUB
chmod 755 /usr/bin/man

# The image was days old when it was used.
find /var/log -exec touch -h -d '2023-06-01 12:00 UTC' {} +
"""

_NL2BASH_PACKAGES = """
bash python3 psmisc procps bsdmainutils imagemagick dnsutils git less tree net-tools iputils-ping
curl cpio jq netbase
"""
_NL2BASH_ABSENT = """
md5deep xxd sudo bc rsync parallel wget python file vi vim nano gcc c++ make unzip zip rename
compress ip gawk
"""

RECIPES: dict[str, System] = {
    "nl2bash": System(
        suite="bullseye",
        # Without the mail server that Debian's cron recommends, and Ubuntu's does not.
        packages=("cron",),
        with_recommended=tuple(_NL2BASH_PACKAGES.split()),
        absent=tuple(_NL2BASH_ABSENT.split()),
        finish=_NL2BASH_FINISH,
        keep_logs=True,
        env={"PATH": SEARCH_PATH, "HOME": "/root"},
        cwd="/",
    ),
}
