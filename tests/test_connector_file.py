"""`file:` URLs: what lies under the root is read, all else is refused without waiting."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from safelight.connector.file_url import FileRoot
from safelight.errors import BlockedURLError, FetchError, PayloadTooLargeError, RequestError

pytestmark = pytest.mark.timeout(20)


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
    assert files.read(f"file://{root}/a%20b.png", 100) == b"inside"
    assert files.read(f"file://{root}/a b.png", 100) == b"inside"
    assert files.read(f"FILE:{root}/sub/c", 100) == b"deep"
    assert files.read(f"file://{root}/sub/../a%20b.png", 100) == b"inside"
    assert files.read(f"file://{root}/%C3%BCn%C3%AF", 100) == b"wide"
    assert files.read(f"file://{root}/ünï", 100) == b"wide"
    assert files.read((root / "a b.png").as_uri(), 100) == b"inside"


def test_refuses_every_way_out(root):
    files = FileRoot(root)
    os.symlink(root.parent / "x", root / "link")
    os.symlink(root.parent, root / "up")
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
            files.read(url, 100)
        for secret in (str(root), "etc", "outside"):
            assert secret not in str(caught.value), url


def test_the_root_and_links_inside_it_may_be_links(tmp_path, root):
    link = tmp_path / "link"
    os.symlink(root, link)
    os.symlink(root / "sub" / "c", root / "y")
    os.symlink("sub", root / "s")
    files = FileRoot(link)
    assert files.read(f"file://{link}/y", 100) == b"deep"
    assert files.read(f"file://{link}/s/c", 100) == b"deep"
    assert files.read(f"file://{root}/y", 100) == b"deep"


def test_what_is_no_regular_file_is_refused_without_waiting(root):
    os.mkfifo(root / "fifo")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(os.path.relpath(root / "socket"))
    files = FileRoot(root)
    for name in ("fifo", "socket", "sub"):
        with pytest.raises(BlockedURLError):
            files.read(f"file://{root}/{name}", 100)
    unix.close()


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/1/cmdline", "/dev/zero", "/dev/stdin", "/sys/kernel"]
)
def test_views_of_the_kernel_are_refused_even_under_the_widest_root(path):
    with pytest.raises(BlockedURLError):
        FileRoot("/").read(f"file://{path}", 1 << 30)


def test_a_root_of_slash_serves_files(root):
    assert FileRoot("/").read(f"file://{root}/sub/c", 100) == b"deep"


def test_size_is_checked_before_reading(root):
    files = FileRoot(root)
    assert files.read(f"file://{root}/sub/c", 4) == b"deep"
    with pytest.raises(PayloadTooLargeError) as caught:
        files.read(f"file://{root}/sub/c", 3)
    assert (caught.value.limit, caught.value.actual) == (3, 4)
    with (root / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(PayloadTooLargeError):
        files.read(f"file://{root}/sparse", 1 << 20)


def test_a_file_of_many_reads_comes_whole(root):
    data = os.urandom(3_000_001)
    (root / "big").write_bytes(data)
    assert FileRoot(root).read(f"file://{root}/big", 1 << 22) == data


def test_a_file_that_shrinks_or_grows_is_an_error_not_a_part(root, monkeypatch):
    target = root / "sub" / "c"
    read = os.read

    def change_then_read(descriptor, size):
        data = read(descriptor, size)
        with target.open("r+b") as file:
            file.truncate(new_size)
        return data

    target.write_bytes(bytes(2 << 20))
    for new_size in (1 << 20, (2 << 20) + 5):  # noqa: B007 - `change_then_read` uses it
        target.write_bytes(bytes(2 << 20))
        monkeypatch.setattr("safelight.connector.file_url.os.read", change_then_read)
        with pytest.raises(FetchError, match="changed"):
            FileRoot(root).read(f"file://{target}", 1 << 30)
        monkeypatch.undo()


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
            os.symlink(outside, folder)
            folder.unlink()
            away.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        for _ in range(2000):
            try:
                seen.add(files.read(f"file://{root}/sub/c", 100))
            except BlockedURLError:
                seen.add(None)
        assert seen <= {b"deep", None}
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("path", ["/missing/folder", "/etc/hostname", "\0"])
def test_a_root_that_is_no_folder_is_a_mistake(path):
    with pytest.raises(RequestError):
        FileRoot(path)
