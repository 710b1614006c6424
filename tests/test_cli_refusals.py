"""What makes the command line fail, each in one line; and which local files it serves."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import GOOD, SAFELIGHT, fails, picture, run, user
from safelight import ImageMediaIO
from safelight.cli import main
from tiny_model import data_url, image_part, png

pytest.importorskip("transformers", reason="needs the hf extra")
pytestmark = pytest.mark.timeout(180)  # importing transformers and torch takes its time


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], str]:
    """Writes a document as JSON, or text as it is, and returns the path."""

    def write(name: str, document: Any) -> str:
        path = tmp_path / name
        text = document if isinstance(document, str) else json.dumps(document)
        path.write_text(text, "utf-8", "surrogatepass")
        return str(path)

    return write


# --- what fails ---


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",
        "data:image/png,s3cr3t",
        "data:image/png;base64,s3cr3t!",
        "data:image/png;base64,",
        data_url(b"s3cr3t"),
        data_url(png(picture(1))[:40]),
        data_url(png(picture(1))[:-80]),
        "gopher://s3cr3t/x.png",
        "s3cr3t/x.png",
        "file:///s3cr3t/x.png",
        "\ud800.png",
    ],
)
def test_a_failed_chat_is_one_line_that_names_the_image(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], url: str
) -> None:
    good = write("good.json", user(*GOOD))
    bad = write("bad.json", user(*GOOD, image_part(url)))
    for flags in ([], ["--json"]):
        line = fails(capsys, "render", good, bad, *flags)
        assert line.startswith(f"safelight: {bad}: image 3: ")
        assert "s3cr3t" not in line


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5_000, "not JSON"),
        ("7", "neither a list of messages nor an object that has one"),
        ('"messages"', "neither a list of messages nor an object that has one"),
        ("{}", "neither a list of messages nor an object that has one"),
        ([], "messages are empty"),
        ({"messages": None}, "messages must be a list"),
        ({"messages": {"role": "user"}}, "messages must be a list"),
        (
            [{"role": "user", "content": [{"type": "video_url"}]}],
            "messages[0].content[0]: the model takes no video input",
        ),
        ({"messages": user("hi"), "mm_processor_kwargs": [1]}, "mm_processor_kwargs must be an"),
        ({"messages": user("hi"), "mm_processor_kwargs": "x"}, "mm_processor_kwargs must be an"),
        (
            {"messages": user(GOOD[0]), "mm_processor_kwargs": {"size": "x"}},
            "image 0: the model's processor cannot process it",
        ),
        (
            {"messages": user(GOOD[0]), "mm_processor_kwargs": {"merge_size": "x"}},
            "merge_size is 2, and not a request's to set",
        ),
        ([{"role": "user", "content": "\ud800"}], "the prompt is not valid text"),
        ([{"role": "user", "content": "<|image_pad|>"}], "1 image placeholders for 0 image items"),
        ({"messages": user("hi"), "tolls": []}, "a field that is not known: tolls"),
        ({"messages": user("hi"), "tools": [{}]}, "the model's chat template reads no tools"),
        (user("<|image_pad|>", GOOD[0]), "2 image placeholders for 1 image items"),
    ],
)
def test_a_malformed_chat_is_one_line(
    capsys: pytest.CaptureFixture[str],
    write: Callable[[str, Any], str],
    document: Any,
    text: str,
) -> None:
    path = write("chat.json", document)
    line = fails(capsys, "render", path, "--json")
    assert line.startswith(f"safelight: {path}: ")
    assert text in line


def test_files_and_arguments_that_are_not_there(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], tmp_path: Path
) -> None:
    chat = write("chat.json", user(GOOD[0]))
    assert "No such file" in fails(capsys, "render", str(tmp_path / "absent.json"))
    assert "Is a directory" in fails(capsys, "render", str(tmp_path))
    assert "cannot be loaded" in fails(capsys, "render", chat, "--model", str(tmp_path / "absent"))
    line = fails(capsys, "render", chat, "--allowed-local-media-path", str(tmp_path / "absent"))
    assert "allowed_local_media_path is not an existing folder" in line
    assert "\\n" in fails(capsys, "render", str(tmp_path / "two\nlines.json"))
    for arguments in (
        ["--mm-processor-cache-gb", "nan"],
        ["--mm-processor-cache-gb", "inf"],
        ["--mm-processor-cache-gb", "-1"],
        ["--max-image-pixels", "-1"],
        ["--max-image-pixels", "many"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["render", chat, *arguments])
        assert caught.value.code == 2


def test_an_oversize_image(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str]
) -> None:
    chat = write("chat.json", user(*GOOD))
    line = fails(capsys, "render", chat, "--max-image-pixels", "3000")
    assert line.endswith("image 0: image is 64x48 = 3072 pixels, over max_image_pixels 3000")
    assert run(capsys, "render", chat, "--max-image-pixels", "3072")[0] == 0


def test_what_a_library_warns_of_is_no_failure(
    write: Callable[[str, Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    # Pillow warns of transparency in bytes when a palette is converted to RGB.
    image = picture(1).quantize(16)
    payload = png(image, transparency=bytes(range(16)))
    done = subprocess.run(
        [
            *SAFELIGHT,
            "render",
            write("chat.json", user(image_part(data_url(payload)))),
            "--json",
            *("--model", "demo"),
        ],
        capture_output=True,
        check=True,
        timeout=150,
    )
    assert done.stderr == b""


# --- local files ---


def local(url: str) -> list[dict[str, Any]]:
    return user(*GOOD, image_part(url))


def test_files_and_bare_paths_only_under_the_allowed_folder(
    capsys: pytest.CaptureFixture[str],
    write: Callable[[str, Any], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "root"
    (root / "in ner").mkdir(parents=True)
    payload = png(picture(9))
    (root / "a b%20ü#?.png").write_bytes(payload)
    (root / "in ner" / "c.png").write_bytes(payload)
    (root / "inside.png").symlink_to(root / "in ner" / "c.png")
    (tmp_path / "out.png").write_bytes(payload)
    (root / "escape.png").symlink_to(tmp_path / "out.png")
    os.mkfifo(root / "fifo.png")
    monkeypatch.chdir(root)
    allowed = ["--allowed-local-media-path", str(root)]
    key = ImageMediaIO().load_bytes_ref(payload).key.hex()

    good = [
        f"{root}/a b%20ü#?.png",
        "a b%20ü#?.png",
        "in ner/c.png",
        "./in ner/../in ner/c.png",
        "inside.png",
        f"file://{root}/in%20ner/c.png",
        f"file:{root}/in%20ner/c.png",
    ]
    for number, url in enumerate(good):
        chat = write(f"good{number}.json", local(url))
        status, out, err = run(capsys, "render", chat, "--json", *allowed)
        assert (status, err) == (0, ""), url
        assert json.loads(out)["prompts"][0]["items"][3]["key"] == key
        assert "image 3: " in fails(capsys, "render", chat), "not without the option"
    for number, url in enumerate(
        [
            f"{tmp_path}/out.png",
            "../out.png",
            "escape.png",
            "fifo.png",
            "absent.png",
            "in ner",
            "nul\0.png",
            f"file://{root}/../out.png",
            f"file://{root}/%2e%2e/out.png",
            "file://host/out.png",
            "/dev/zero",
            "/etc/passwd",
        ]
    ):
        line = fails(capsys, "render", write(f"bad{number}.json", local(url)), *allowed)
        name = f"bad{number}.json: image 3: "
        assert name in line, url
        assert str(root) not in line.partition(name)[2]
