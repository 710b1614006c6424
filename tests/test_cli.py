"""The command line, with the embedded default processor: documents, tensors and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import GOOD, SAFELIGHT, fails, picture, run, sha256, turned_jpeg, user
from safelight import DecodeSpec, ImageMediaIO, MultiModalHasher, derive_media_key
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


@pytest.fixture(scope="module")
def hf_processor() -> Any:
    from safelight.processing.loading import demo_processor

    return demo_processor()


# --- render ---


def test_the_document_is_what_the_plain_processor_gives(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], hf_processor: Any
) -> None:
    payloads = [turned_jpeg(), png(picture(1, 200, 30)), png(picture(2).convert("RGBA"))]
    messages = [
        {"role": "system", "content": "You see."},
        *user(image_part(data_url(payloads[0])), "and", image_part(data_url(payloads[1]))),
        {"role": "assistant", "content": "Yes."},
        *user(image_part(data_url(payloads[2])), "ünï\n"),
    ]
    path = write("chat.json", messages)
    status, out, err = run(capsys, "render", path, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document.keys() == {"prompts"}
    (prompt,) = document["prompts"]
    assert prompt.keys() == {"token_ids", "items"}

    images = [ImageMediaIO().load_bytes(payload) for payload in payloads]
    for message in messages:
        if not isinstance(message["content"], str):
            message["content"] = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
                for part in message["content"]
            ]
    text = hf_processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    plain = hf_processor(text=[text], images=images, return_tensors="np")
    token_ids = plain["input_ids"][0].tolist()
    assert prompt["token_ids"] == token_ids

    assert len(prompt["items"]) == 3
    row = end = 0
    for index, item in enumerate(prompt["items"]):
        grid = plain["image_grid_thw"][index]
        rows = int(grid.prod())
        pixels = plain["pixel_values"][row : row + rows]
        offset = token_ids.index(hf_processor.image_token_id, end)
        key = ImageMediaIO().load_bytes_ref(payloads[index]).key
        row, end = row + rows, offset + rows // 4
        assert item == {
            "modality": "image",
            "index": index,
            "key": key.hex(),
            "hash": item["hash"],
            "offset": offset,
            "length": rows // 4,
            "format": ["JPEG", "PNG", "PNG"][index],
            "width": [80, 200, 64][index],
            "height": [40, 30, 48][index],
            "orientation": [6, 1, 1][index],
            "cache": "miss",
            "tensors": {
                "pixel_values": {
                    "shape": [rows, 1536],
                    "dtype": "float32",
                    "sha256": sha256(pixels),
                },
                "image_grid_thw": {"shape": [3], "dtype": "int64", "sha256": sha256(grid)},
            },
        }
        assert bytes.fromhex(item["hash"])
        assert set(token_ids[offset:end]) == {hf_processor.image_token_id}
    assert hf_processor.image_token_id not in token_ids[end:]


def test_chats_of_one_run_share_the_caches(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str]
) -> None:
    first, second = (image_part(data_url(png(picture(n)))) for n in (1, 2))
    one, two = write("one.json", user(first)), write("two.json", user(second, first, first))
    status, out, _ = run(capsys, "render", one, two, one, "--json")
    assert status == 0
    prompts = json.loads(out)["prompts"]
    caches = [[item["cache"] for item in prompt["items"]] for prompt in prompts]
    assert caches == [["miss"], ["miss", "hit", "hit"], ["hit"]]
    assert prompts[0]["items"][0]["tensors"] == prompts[2]["items"][0]["tensors"]
    assert prompts[0]["token_ids"] == prompts[2]["token_ids"]
    status, out, _ = run(capsys, "render", one, one, "--json", "--mm-processor-cache-gb", "0")
    assert [p["items"][0]["cache"] for p in json.loads(out)["prompts"]] == ["miss", "miss"]


def test_a_document_may_bring_processor_options(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], hf_processor: Any
) -> None:
    image = picture(1, 640, 480)
    messages = user(image_part(data_url(png(image))))
    size = {"shortest_edge": 1024, "longest_edge": 16384}
    small = write("small.json", {"messages": messages, "mm_processor_kwargs": {"size": size}})
    large = write("large.json", messages)
    _, out, _ = run(capsys, "render", small, large, "--json")
    items = [prompt["items"][0] for prompt in json.loads(out)["prompts"]]
    plain = hf_processor.image_processor(images=[image], return_tensors="np", size=size)
    assert items[0]["tensors"]["pixel_values"]["sha256"] == sha256(plain["pixel_values"])
    assert items[0]["hash"] != items[1]["hash"]
    assert items[0]["key"] == items[1]["key"]
    assert items[0]["length"] < items[1]["length"]


def test_text_alone_and_uuids(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str]
) -> None:
    url = data_url(png(picture(1)))
    named = write("named.json", user(image_part(url, uuid="u")))
    known = write("known.json", user(image_part(None, uuid="u")))
    text = write("text.json", [{"role": "user", "content": "hi"}])
    status, out, _ = run(capsys, "render", named, known, text, "--json")
    assert status == 0
    first, second, third = json.loads(out)["prompts"]
    assert third["items"] == []
    (one,), (two,) = first["items"], second["items"]
    assert one["hash"] == two["hash"] == "u"
    assert two["cache"] == "hit"
    assert two["tensors"] == one["tensors"]
    assert [two[name] for name in ("key", "format", "width", "height", "orientation")] == [None] * 5
    assert fails(capsys, "render", known).endswith(
        "known.json: image 0 has a uuid but no media, and no cache holds it"
    )


def test_the_table_has_a_row_an_item_and_the_times(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str]
) -> None:
    part = image_part(data_url(png(picture(1))))
    status, out, err = run(capsys, "render", write("chat.json", user(part, part)))
    assert (status, err) == (0, "")
    header, first, second, times = out.splitlines()
    assert header.split() == "prompt item cache format size tokens tensors key".split()
    assert first.split()[:6] == ["0", "image", "0", "miss", "PNG", "64x48"]
    assert second.split()[:6] == ["0", "image", "1", "hit", "PNG", "64x48"]
    assert "pixel_values[280,1536]" in first
    assert "tokens; fetch " in times


def test_standard_input_is_a_chat(write: Callable[[str, Any], str]) -> None:
    done = subprocess.run(
        [*SAFELIGHT, "render", "-", "--json", "--model", "demo"],
        input=json.dumps(user("hi")).encode(),
        capture_output=True,
        check=True,
        timeout=150,
    )
    assert json.loads(done.stdout)["prompts"][0]["items"] == []
    assert done.stderr == b""


def test_saved_tensors_are_named_by_their_place(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    parts = [image_part(data_url(png(picture(n, 64 + 64 * n)))) for n in (0, 1)]
    target = tmp_path / "out.safetensors"
    chats = [write("one.json", user(*parts)), write("two.json", user(parts[1]))]
    status, out, _ = run(capsys, "render", *chats, "--json", "--save", str(target))
    assert status == 0
    saved = load_file(target)
    expected = {
        f"prompts.{p}.items.{i}.{name}": tensor
        for p, prompt in enumerate(json.loads(out)["prompts"])
        for i, item in enumerate(prompt["items"])
        for name, tensor in item["tensors"].items()
    }
    assert saved.keys() == expected.keys()
    assert "prompts.0.items.1.pixel_values" in saved
    for name, tensor in expected.items():
        assert list(saved[name].shape) == tensor["shape"]
        assert saved[name].dtype.name == tensor["dtype"]
        assert sha256(saved[name]) == tensor["sha256"]
    for folder in (tmp_path, tmp_path / "absent" / "out.safetensors"):
        line = fails(capsys, "render", chats[0], "--json", "--save", str(folder))
        assert line == f"safelight: {folder}: cannot be written"


def test_help_says_how_saved_tensors_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["render", "--help"])
    assert "prompts.0.items.2.pixel_values" in " ".join(capsys.readouterr().out.split())


# --- checkpoints ---

HIDE_TORCH = """
import importlib.machinery, sys

class WithoutTorch(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in ("torch", "torchvision"):
            return None
        return super().find_spec(fullname, path, target)

finders = sys.meta_path
finders[finders.index(importlib.machinery.PathFinder)] = WithoutTorch
from safelight.cli import main
status = main()
assert "torch" not in sys.modules
raise SystemExit(status)
"""


@pytest.fixture(scope="module")
def checkpoint(hf_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    hf_processor.save_pretrained(folder)
    return str(folder)


def render_without_torch(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_TORCH, "render", "--json", *arguments],
        capture_output=True,
        check=False,
        timeout=150,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_without_torch_default_and_checkpoint_give_the_same(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], checkpoint: str
) -> None:
    chat = write("chat.json", user(*GOOD, "hi"))
    document = render_without_torch(chat, "--model", "demo")
    loaded = render_without_torch(chat, "--model", checkpoint)
    status, out, _ = run(capsys, "render", chat, "--json")
    assert status == 0
    here = json.loads(out)
    assert document == here, "torch beside it changes nothing, not even hashes"
    assert loaded == document, "a saved and loaded processor is the same processor"


def test_the_command_line_alone_assumes_the_demo_and_says_so(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str]
) -> None:
    chat = write("chat.json", user(*GOOD, "hi"))
    capsys.readouterr()
    assert main(["render", chat, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("safelight: no --model, so this is demo")
    assert err.count("\n") == 1
    assert out == run(capsys, "render", chat, "--json")[1]
    assert fails(capsys, "render", chat, "--model", "").startswith("safelight: model must be ")


def test_a_local_checkpoint_is_loaded_by_transformers(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], checkpoint: str
) -> None:
    pytest.importorskip("torchvision", reason="needs the torchvision backend")
    from transformers import AutoImageProcessor

    image = picture(1, 300, 200)
    chat = write("chat.json", user(image_part(data_url(png(image))), "hi"))
    status, out, err = run(capsys, "render", chat, "--json", "--model", checkpoint)
    assert (status, err) == (0, "")
    (item,) = json.loads(out)["prompts"][0]["items"]
    plain = AutoImageProcessor.from_pretrained(checkpoint)(images=[image], return_tensors="pt")
    assert item["tensors"]["pixel_values"]["sha256"] == sha256(plain["pixel_values"].numpy())
    assert item["tensors"]["image_grid_thw"]["sha256"] == sha256(plain["image_grid_thw"][0].numpy())


def test_a_checkpoint_of_an_unserved_family(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "processor_config.json").write_text('{"processor_class": "s3cr3t"}')
    line = fails(capsys, "render", write("chat.json", user("hi")), "--model", str(folder))
    assert "names no class that transformers has" in line


# --- output ---


def test_a_reader_that_has_seen_enough(write: Callable[[str, Any], str]) -> None:
    image = Path(write("a.png", ""))
    image.write_bytes(png(picture(1)))
    for command in ("probe", "key"):
        read, written = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*SAFELIGHT, command, "--json", *[str(image)] * 2000],
            stdout=written,
            stderr=subprocess.PIPE,
            check=False,
            timeout=150,
        )
        os.close(written)
        assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written(write: Callable[[str, Any], str]) -> None:
    image = Path(write("a.png", ""))
    image.write_bytes(png(picture(1)))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SAFELIGHT, "probe", str(image)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=150,
        )
    assert done.returncode == 1
    assert done.stderr == b"safelight: the output cannot be written: No space left on device\n"


# --- probe and key ---


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    payloads = {
        "turned.jpg": turned_jpeg(),
        "alpha.png": png(picture(1).convert("RGBA")),
        "broken.png": b"\x89PNG\r\n\x1a\n",
    }
    for name, payload in payloads.items():
        (tmp_path / name).write_bytes(payload)
    return {name: tmp_path / name for name in payloads}


def test_probe_prints_a_table(capsys: pytest.CaptureFixture[str], files: dict[str, Path]) -> None:
    status, out, err = run(capsys, "probe", str(files["turned.jpg"]), str(files["alpha.png"]))
    assert (status, err) == (0, "")
    header, jpeg, alpha = (line.split() for line in out.splitlines())
    assert header == "file format size upright mode bits alpha frames".split()
    assert jpeg[1:] == ["JPEG", "80x40", "40x80", "RGB", "8", "no", "1"]
    assert alpha[1:] == ["PNG", "64x48", "64x48", "RGBA", "8", "yes", "1"]


def test_probe_prints_a_json_line_a_file(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path]
) -> None:
    status, out, err = run(capsys, "probe", "--json", str(files["turned.jpg"]))
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "file": str(files["turned.jpg"]),
        "format": "JPEG",
        "width": 80,
        "height": 40,
        "upright_size": [40, 80],
        "mode": "RGB",
        "bits": 8,
        "has_alpha": False,
        "is_animated": False,
        "frame_count": 1,
        "orientation": 6,
        "image_id": None,
        "image_unique_id": None,
    }


def test_probe_goes_on_after_a_file_that_it_cannot_read(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], tmp_path: Path
) -> None:
    absent = tmp_path / "absent.png"
    status, out, err = run(
        capsys, "probe", str(absent), str(files["broken.png"]), str(files["alpha.png"])
    )
    assert status == 1
    assert "alpha.png" in out
    first, second = err.splitlines()
    assert first == f"safelight: {absent}: No such file or directory"
    assert second.startswith(f"safelight: {files['broken.png']}: ")


def test_key_is_the_key_of_the_payload_and_the_decoders_spec(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path]
) -> None:
    path = files["alpha.png"]

    def expected(mode: str | None) -> str:
        spec = DecodeSpec({"image_mode": mode, "rgba_background_color": [255, 255, 255]})
        return derive_media_key(path.read_bytes(), spec).hex()

    assert run(capsys, "key", str(path)) == (0, f"{expected('RGB')}  {path}\n", "")
    _, out, _ = run(capsys, "key", "--json", "--image-mode", "none", str(path))
    assert json.loads(out) == {"file": str(path), "key": expected(None)}
    assert expected("RGB") != expected(None)
    assert "No such file" in fails(capsys, "key", str(path), str(path.with_name("absent.png")))


def test_keys_agree_with_render(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], write: Callable[[str, Any], str]
) -> None:
    path = files["turned.jpg"]
    _, keys, _ = run(capsys, "key", str(path))
    chat = write("chat.json", user(image_part(data_url(path.read_bytes()))))
    _, out, _ = run(capsys, "render", chat, "--json")
    (item,) = json.loads(out)["prompts"][0]["items"]
    assert keys.split()[0] == item["key"]
    ref = ImageMediaIO().load_bytes_ref(path.read_bytes())
    assert MultiModalHasher.hash_kwargs("blake3", image=ref)


def test_tools_and_text_reach_a_template_that_reads_these(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Any], str], tmp_path: Path
) -> None:
    from safelight.processing.loading import demo_processor

    hf_processor = demo_processor()
    hf_processor.chat_template = (
        "{{ tools | length }} tools{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    hf_processor.save_pretrained(tmp_path / "model")
    document = {"messages": user("hi", "you", GOOD[0]), "tools": [{"type": "function"}] * 2}
    path = write("chat.json", {**document, "temperature": 0.5})
    status, out, err = run(capsys, "render", path, "--json", "--model", str(tmp_path / "model"))
    assert (status, err) == (0, "")
    (prompt,) = json.loads(out)["prompts"]
    (item,) = prompt["items"]
    pads = "<|image_pad|>" * item["length"]
    expected = f"2 tools<|vision_start|>{pads}<|vision_end|>\nhi\nyou"
    assert prompt["token_ids"] == hf_processor.tokenizer(expected)["input_ids"]
