"""`file:` URLs: what lies under the root is read, all else is refused without waiting."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from safelight import DownloadBudget
from safelight.budget import Charge
from safelight.connector.file_url import FileRoot
from safelight.errors import (
    BlockedURLError,
    ConfigurationError,
    FetchError,
    PayloadTooLargeError,
    TransientFetchError,
)

pytestmark = pytest.mark.timeout(20)


def read(files: FileRoot, url: str, max_bytes: int = 100) -> bytes:
    charge = Charge(DownloadBudget(1 << 50))
    data = files.read(url, max_bytes, charge)
    assert len(data) == charge.held_bytes
    return data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b.png").write_bytes(b"inside")
    (folder / "sub" / "c").write_bytes(b"deep")
    (folder / "ünï").write_bytes(b"wide")
    (tmp_path / "x").write_bytes(b"outside")
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "x").write_bytes(b"beside")
    return folder


def test_reads_what_is_inside(root):
    files = FileRoot(root)
    assert read(files, f"file://{root}/a%20b.png", 100) == b"inside"
    assert read(files, f"file://{root}/a b.png", 100) == b"inside"
    assert read(files, f"FILE:{root}/sub/c", 100) == b"deep"
    assert read(files, f"file://{root}/sub/../a%20b.png", 100) == b"inside"
    assert read(files, f"file://{root}/%C3%BCn%C3%AF", 100) == b"wide"
    assert read(files, f"file://{root}/ünï", 100) == b"wide"
    assert read(files, (root / "a b.png").as_uri(), 100) == b"inside"


def test_refuses_every_way_out(root):
    files = FileRoot(root)
    (root / "link").symlink_to(root.parent / "x")
    (root / "up").symlink_to(root.parent)
    for url in [
        f"file://{root}/%2e%2e/x",
        f"file://{root}/../x",
        f"file://{root}/..%2fx",
        f"file://{root}/link",
        f"file://{root}/up/x",
        f"file://{root}2/x",
        f"file://{root}/a%00b",
        f"file://otherhost{root}/a%20b.png",
        f"file://localhost{root}/a%20b.png",
        f"file:////{root}/../x",
        "file:a b.png",
        "file:a%20b.png",
        "file:",
        "file://",
        "file:///",
        f"file://{root}",
        f"file://{root}/",
        f"file://{root}/sub",
        f"file://{root}/missing",
        f"file://{root}/sub/c/d",
        f"file://{root}/a%20b.png?x",
        f"file://{root}/a%20b.png#x",
        f"file://{root}/a%2",
        f"file://{root}/a%zz",
        f"file://{root}/\udc80",
        "file:///etc/passwd",
    ]:
        with pytest.raises(BlockedURLError) as caught:
            read(files, url, 100)
        for secret in (str(root), "passwd", "%2e", "missing"):
            assert secret not in str(caught.value), url


def test_the_root_and_links_inside_it_may_be_links(tmp_path, root):
    link = tmp_path / "link"
    link.symlink_to(root)
    (root / "y").symlink_to(root / "sub" / "c")
    (root / "s").symlink_to("sub")
    files = FileRoot(link)
    assert read(files, f"file://{link}/y", 100) == b"deep"
    assert read(files, f"file://{link}/s/c", 100) == b"deep"
    assert read(files, f"file://{root}/y", 100) == b"deep"


def test_what_is_no_regular_file_is_refused_without_waiting(root):
    os.mkfifo(root / "fifo")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(os.path.relpath(root / "socket"))
    files = FileRoot(root)
    for name in ("fifo", "socket", "sub"):
        with pytest.raises(BlockedURLError):
            read(files, f"file://{root}/{name}", 100)
    unix.close()


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/1/cmdline", "/dev/zero", "/dev/stdin", "/sys/kernel"]
)
def test_views_of_the_kernel_are_refused_even_under_the_widest_root(path):
    with pytest.raises(BlockedURLError):
        read(FileRoot("/"), f"file://{path}", 1 << 30)


def test_a_root_of_slash_serves_files(root):
    assert read(FileRoot("/"), f"file://{root}/sub/c", 100) == b"deep"


def test_size_is_checked_before_reading(root):
    files = FileRoot(root)
    assert read(files, f"file://{root}/sub/c", 4) == b"deep"
    with pytest.raises(PayloadTooLargeError) as caught:
        read(files, f"file://{root}/sub/c", 3)
    assert (caught.value.limit, caught.value.actual) == (3, 4)
    with (root / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(PayloadTooLargeError):
        read(files, f"file://{root}/sparse", 1 << 20)


def test_a_file_of_many_reads_comes_whole(root):
    data = os.urandom(3_000_001)
    (root / "big").write_bytes(data)
    assert read(FileRoot(root), f"file://{root}/big", 1 << 22) == data


@pytest.mark.parametrize("new_size", [1 << 20, (2 << 20) + 5], ids=["shrinks", "grows"])
def test_a_file_that_changes_is_an_error_not_a_part(root, monkeypatch, new_size):
    target = root / "sub" / "c"
    target.write_bytes(bytes(2 << 20))
    read_some = os.read

    def read_and_change(descriptor, size):
        data = read_some(descriptor, size)
        os.truncate(target, new_size)
        return data

    monkeypatch.setattr("safelight.connector.file_url.os.read", read_and_change)
    with pytest.raises(FetchError, match="changed"):
        read(FileRoot(root), f"file://{target}", 1 << 30)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EIO])
@pytest.mark.parametrize("call", ["open", "read"])
def test_what_the_machine_cannot_do_now_is_transient(root, monkeypatch, code, call):
    def fail(*args, **kwargs):
        raise OSError(code, "secret")

    files = FileRoot(root)
    monkeypatch.setattr(f"safelight.connector.file_url.os.{call}", fail)
    with pytest.raises(TransientFetchError) as caught:
        read(files, f"file://{root}/sub/c")
    assert not isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)


def test_no_descriptor_left_is_transient(root):
    code = f"""
import os, resource
from safelight import MediaConnector, TransientFetchError
connector = MediaConnector(allowed_local_media_path={str(root)!r})
connector.load_from_urls(["data:,"], None or __import__("safelight").ImageMediaIO())
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    connector.fetch_image("file://{root}/sub/c")
except TransientFetchError as error:
    os.write(1, str(error).encode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=20)
    assert done.stdout == b"file cannot be opened at the moment"


def test_a_folder_exchanged_for_a_link_meanwhile_leads_nowhere(root):
    """The path is resolved, then opened: whoever swaps a folder in between gains nothing."""
    files = FileRoot(root)
    outside = root.parent / "secret"
    outside.mkdir()
    (outside / "c").write_bytes(b"outside")
    stop = threading.Event()

    def swap():
        folder, away = root / "sub", root / "away"
        while not stop.is_set():
            folder.rename(away)
            folder.symlink_to(outside)
            folder.unlink()
            away.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(2000):
            try:
                seen.add(read(files, f"file://{root}/sub/c", 100))
            except BlockedURLError:
                seen.add(None)
        assert seen <= {b"deep", None}
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("path", ["/missing/folder", "/etc/hostname", "\0"])
def test_a_root_that_is_no_folder_is_a_mistake(path):
    with pytest.raises(ConfigurationError):
        FileRoot(path)
