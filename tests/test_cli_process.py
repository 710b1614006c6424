"""The command line as a process: standard streams that are not there, names that are no files."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from pathlib import Path

import pytest
from PIL import Image

import safelight
from command import SAFELIGHT, fails, run

pytestmark = pytest.mark.timeout(60)


def shell(arguments: str, redirects: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run ``safelight`` under a shell, which can close streams before it starts."""
    return subprocess.run(
        ["sh", "-c", f"{shlex.join(SAFELIGHT)} {arguments} {redirects}"],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=50,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 4)).save(tmp_path / "a.png")
    return tmp_path


@pytest.mark.parametrize("arguments", ["features", "probe a.png", "key a.png", "--version"])
@pytest.mark.parametrize("redirects", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(folder: Path, arguments: str, redirects: str) -> None:
    result = shell(arguments, redirects, folder)
    assert result.returncode == 0
    assert result.stderr == b""
    assert bool(result.stdout) == (">&-" not in redirects.replace("2>&-", ""))


@pytest.mark.parametrize("redirects", ["2>&-", ">&- 2>&-", "<&-"])
def test_a_failure_without_streams_is_a_status(folder: Path, redirects: str) -> None:
    result = shell("probe absent.png", redirects, folder)
    assert result.returncode == 1
    assert b"Traceback" not in result.stdout + result.stderr


def test_standard_input_that_is_closed_is_an_empty_file(folder: Path) -> None:
    result = shell("probe -", "<&-", folder)
    assert result.returncode == 1
    assert result.stderr.count(b"\n") == 1


def test_no_file_passes_for_a_stream(folder: Path) -> None:
    # With stream 1 closed, the first file opened would get its number and be printed into.
    before = (folder / "a.png").read_bytes()
    assert shell("key a.png", ">&- <&-", folder).returncode == 0
    assert (folder / "a.png").read_bytes() == before


@pytest.mark.parametrize("command", ["probe", "key", "render"])
def test_an_empty_name_is_no_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, command: str
) -> None:
    monkeypatch.chdir(folder)
    assert fails(capsys, command, "") == "safelight: '' is not the name of a file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize("command", ["probe", "key", "render"])
def test_a_pipe_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    # Whatever opens the pipe for reading and waits is let go, and the test fails by its message.
    release = threading.Timer(20, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)))
    release.start()
    try:
        assert fails(capsys, command, str(path)) == f"safelight: {path}: not a regular file"
    finally:
        release.cancel()


@pytest.mark.parametrize("command", ["key", "render"])
def test_folders_and_devices_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    for path in (tmp_path, Path(os.devnull)):
        assert fails(capsys, command, str(path)).startswith(f"safelight: {path}: ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        run(capsys, "--version")
    assert capsys.readouterr().out == f"safelight {safelight.__version__}\n"
    assert safelight.__version__ == safelight.features()["safelight"]
