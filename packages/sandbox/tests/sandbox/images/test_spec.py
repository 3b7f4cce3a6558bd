"""The grammar of image names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import resolve
from intercode_sandbox.images.base import parse


@pytest.mark.parametrize(
    ("text", "scheme", "argument", "additions"),
    [
        ("host", "host", "", []),
        ("  host\n", "host", "", []),
        ("debian:bookworm", "debian", "bookworm", []),
        ("debian:trixie[g++,jq]", "debian", "trixie[g++,jq]", []),
        ("debian:trixie[g++]+/a.tar", "debian", "trixie[g++]", ["/a.tar"]),
        ("host+/a/b.tar.gz+/c.sh", "host", "", ["/a/b.tar.gz", "/c.sh"]),
        ("/srv/c++", "folder", "/srv/c++", []),
        ("/srv/../root/+/x.tgz", "folder", "/root", ["/x.tgz"]),
        ("oci:/a/image.tar[x:1]+/b.sh", "oci", "/a/image.tar[x:1]", ["/b.sh"]),
        ("docker://docker.io/library/alpine:3", "docker", "//docker.io/library/alpine:3", []),
        ("/a/Dockerfile", "dockerfile", "/a/Dockerfile", []),
        ("/a/x.Dockerfile[A=1,--target=b]", "dockerfile", "/a/x.Dockerfile[A=1,--target=b]", []),
        ("/a/Dockerfile.old/", "folder", "/a/Dockerfile.old", []),
        ("dockerfile:/a/../b", "dockerfile", "/b", []),
    ],
)
def test_spec(text: str, scheme: str, argument: str, additions: list[str]) -> None:
    spec = parse(text)
    assert (spec.scheme, spec.argument) == (scheme, argument)
    assert [addition.text for addition in spec.additions] == additions


def test_spec_paths_do_not_depend_on_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert str(parse(".+./a.sh+../b.tar+~/c.tar.xz")) == (
        f"{tmp_path}+{tmp_path}/a.sh+{tmp_path.parent}/b.tar+/home/me/c.tar.xz"
    )
    assert parse("~").argument == "/home/me"


REFUSED = r"""
Host  host:  folder:/x  host+/a.zip  host+/a  -x  a,b  host+~nosuchuser/x.sh  +/a.tar
host+builtin:../x.sh  host+builtin:/x.sh
"""


@pytest.mark.parametrize("text", ["", " ", "\0", "host\0", "a b", *REFUSED.split()])
def test_spec_refused(text: str) -> None:
    with pytest.raises(ImageError):
        parse(text)


@pytest.mark.parametrize("text", ["nope", "nl2bash:3", "podman:x", "Nl2bash"])
def test_unknown_image_lists_what_is_understood(text: str) -> None:
    with pytest.raises(ImageError, match=r"(?s)debian:SUITE.*builtin:NAME"):
        resolve(text)


_words = st.text("abcxyz0189.-_+[],: ", min_size=1, max_size=12)
_paths = st.lists(_words, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_specs = st.builds(
    lambda base, rest: "+".join([base, *rest]),
    st.sampled_from(["host", "scratch", "debian:a[b,c++]", "/srv/x", "/srv/c++", "."]),
    st.lists(
        st.builds(
            str.__add__,
            _paths | st.just("builtin:x") | st.just("~/y"),
            st.sampled_from([".tar", ".tgz", ".tar.xz", ".sh"]),
        ),
        max_size=3,
    ),
)


@given(_specs | st.text())
@example("host+/a+/b.tar")
def test_canonical_spec_means_the_same(text: str) -> None:
    try:
        spec = parse(text)
    except ImageError:
        return
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)
