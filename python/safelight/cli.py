"""The command line: ``safelight render``, ``probe``, ``key``, ``features`` and ``demo``.

Thin over the library. Results go to standard output, failures to standard error in one line each,
with exit status 1. A run of `render` is whole: when one chat fails, nothing goes to standard
output. `probe` prints the headers that it could read.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from safelight._safelight import __version__
from safelight.chat import chat_arguments
from safelight.errors import MediaError, RequestError, SafelightError
from safelight.features import features
from safelight.inputs import is_text
from safelight.key import derive_media_key
from safelight.media import ImageMediaIO
from safelight.probe import ImageHeader, probe, probe_files

__all__ = ["main"]

T = TypeVar("T")

# Files read between two steps of the progress bar.
_PROBE_BATCH = 256
# An exabyte, so that bytes fit 64 bits.
_MAX_GIGABYTES = float(1 << 30)

# Of an `ImageHeader`, for JSON.
_HEADER_FIELDS = (
    "format width height upright_size mode bits has_alpha is_animated frame_count orientation "
    "image_id image_unique_id"
).split()
_PROBE_HEADER = ("file", "format", "size", "upright", "mode", "bits", "alpha", "frames")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    _open_streams()
    options = _parser().parse_args(arguments)
    if not sys.warnoptions:
        # Libraries warn of what damaged files hold; standard error is for failures of the command.
        warnings.simplefilter("ignore")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name need not be text, nor fit the terminal's encoding.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except SafelightError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("out of memory")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        return _give_up_output()
    except OSError as error:
        _give_up_output()
        return _fail(f"the output cannot be written: {error.strerror}")
    return status


def _open_streams() -> None:
    """Give a process that was started without standard streams some that lead nowhere."""
    # On the lowest free descriptors, so that no file that is opened later passes for a stream.
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is not None:
            continue
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != descriptor:
            os.dup2(nothing, descriptor)
            os.close(nothing)
        setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def _give_up_output() -> int:
    """Point standard output at nothing, because Python would complain once more at exit."""
    with suppress(OSError, ValueError):  # replaced by something that has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="safelight", description="Handle media without decoding it."
    )
    parser.add_argument("--version", action="version", version=f"safelight {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    render = commands.add_parser(
        "render",
        help="chat requests to token ids and tensors",
        description="Render chats as a vision-language model takes them: token ids, and for each "
        "image its key, hash, placeholder range and tensors. Chats of one run share the caches.",
    )
    render.set_defaults(run=_render)
    render.add_argument(
        "chats",
        nargs="+",
        metavar="CHAT.json",
        help="messages in OpenAI's shape, or an object that has them; - is standard input",
    )
    render.add_argument(
        "--model", help="checkpoint: a local path, a name on the hub, or demo (the default)"
    )
    render.add_argument("--json", action="store_true", help="print one JSON document")
    render.add_argument(
        "--save",
        metavar="FILE",
        help="keep the tensors in a safetensors file, named by their place in the JSON document: "
        "prompts.0.items.2.pixel_values",
    )
    render.add_argument(
        "--allowed-local-media-path",
        default="",
        metavar="DIR",
        help="serve file: URLs and bare paths under it",
    )
    render.add_argument(
        "--allowed-media-domains", nargs="+", metavar="HOST", help="hosts that may be fetched from"
    )
    render.add_argument(
        "--allow-private-addresses", action="store_true", help="fetch from private networks too"
    )
    render.add_argument(
        "--mm-processor-cache-gb", type=_gigabytes, default=4.0, metavar="GB", help="0 is no cache"
    )
    render.add_argument("--max-image-pixels", type=_count, metavar="N", help="0 is no limit")

    probe_command = commands.add_parser(
        "probe", help="image headers", description="Read headers; decode nothing."
    )
    probe_command.set_defaults(run=_probe)
    probe_command.add_argument(
        "files", nargs="+", metavar="FILE", help="a file, a folder, or - for standard input"
    )
    probe_command.add_argument("--json", action="store_true", help="print one JSON line a file")

    key = commands.add_parser(
        "key", help="cache identities", description="Derive media keys; decode nothing."
    )
    key.set_defaults(run=_key)
    key.add_argument("files", nargs="+", metavar="FILE")
    key.add_argument("--image-mode", default="RGB", metavar="MODE", help="or 'none' to keep it")
    key.add_argument("--json", action="store_true", help="print one JSON line a file")

    inside = commands.add_parser(
        "features", help="versions of the native libraries inside, as one JSON document"
    )
    inside.set_defaults(run=_features)

    demo = commands.add_parser(
        "demo", help="render a conversation twice and compare with eager decoding"
    )
    demo.set_defaults(run=_demo)
    return parser


def _render(options: argparse.Namespace) -> int:
    _quiet_transformers()
    from safelight.cache import MultiModalProcessorOnlyCache
    from safelight.processing import MULTIMODAL_REGISTRY
    from safelight.renderer import RenderedChat, Renderer
    from safelight.report import TABLE_HEADER, describe, named_tensors, table_rows

    chats = [_read_chat(path, options.allowed_local_media_path) for path in options.chats]
    image_kwargs = {}
    if options.max_image_pixels is not None:
        image_kwargs["max_image_pixels"] = options.max_image_pixels
    processor = MULTIMODAL_REGISTRY.create_processor(
        _load_model(options.model),
        media_io_kwargs={"image": image_kwargs},
        trust_request_kwargs=True,  # who wrote the chats runs the command
    )
    cache_bytes = int(options.mm_processor_cache_gb * (1 << 30))
    rendered: list[RenderedChat] = []
    with Renderer(
        processor,
        cache=MultiModalProcessorOnlyCache(cache_bytes) if cache_bytes > 0 else None,
        connector_options={
            "allowed_local_media_path": options.allowed_local_media_path,
            "allowed_media_domains": options.allowed_media_domains,
            "allow_private_addresses": options.allow_private_addresses,
        },
    ) as renderer:
        for path, chat in _progress(
            zip(options.chats, chats, strict=True), len(chats), "rendering"
        ):
            try:
                rendered.append(renderer.render_chat(**chat))
            except SafelightError as error:
                return _fail(f"{path}: {error}")
    if options.save:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(named_tensors(rendered), options.save)
        except (OSError, SafetensorError):
            return _fail(f"{options.save}: cannot be written")
    if options.json:
        print(json.dumps(describe(rendered)))
        return 0
    _print_table(TABLE_HEADER, table_rows(rendered))
    for path, result in zip(options.chats, rendered, strict=True):
        stages = " · ".join(
            f"{stage} {seconds * 1000:.1f} ms"
            for stage, seconds in result.timing.stage_secs.items()
        )
        print(f"{path}: {len(result.inputs['prompt_token_ids'])} tokens; {stages}")
    return 0


def _load_model(name: str | None) -> Any:
    """Return the processor of a checkpoint, or the demo's, which the command line alone assumes."""
    from safelight.processing.loading import demo_processor, load_hf_processor

    if name is None:
        print("safelight: no --model, so this is demo, a toy without a checkpoint", file=sys.stderr)
    return demo_processor() if name in (None, "demo") else load_hf_processor(name)


def _read_chat(path: str, allowed_local_media_path: str) -> dict[str, Any]:
    """Return the arguments of `render_chat` that a file holds."""
    try:
        document = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not JSON") from error
    if isinstance(document, list):
        document = {"messages": document}
    if not isinstance(document, dict) or "messages" not in document:
        raise RequestError(f"{path}: neither a list of messages nor an object that has one")
    try:
        chat = chat_arguments(document)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    if allowed_local_media_path:
        _paths_to_urls(chat["messages"])
    return chat


def _paths_to_urls(messages: Any) -> None:
    """Turn bare paths into file: URLs, in place; what is malformed is left to the parser."""
    if not isinstance(messages, list):
        return
    for message in messages:
        parts = message.get("content") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            holder, name = part, "image_url"
            if isinstance(part.get("image_url"), dict):
                holder, name = part["image_url"], "url"
            url = holder.get(name)
            if isinstance(url, str) and url and is_text(url) and not _has_scheme(url):
                holder[name] = "file://" + quote(os.fsencode(Path(url).absolute()))


def _has_scheme(url: str) -> bool:
    scheme, colon, _ = url.partition(":")
    return bool(colon) and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def _probe(options: argparse.Namespace) -> int:
    paths = list(_expand(options.files))
    rows: list[tuple[str, ImageHeader]] = []
    failures = 0
    for path, result in _probe_all(paths):
        if not isinstance(result, ImageHeader):
            failures += 1
            _fail(
                f"{path}: {(result.strerror or result) if isinstance(result, OSError) else result}"
            )
        elif options.json:
            # At once: a run over millions of files must not wait for its end.
            fields = {name: getattr(result, name) for name in _HEADER_FIELDS}
            print(json.dumps({"file": path, **fields}))
        else:
            rows.append((path, result))
    if rows:
        _print_table(_PROBE_HEADER, (_header_row(path, header) for path, header in rows))
    return 1 if failures else 0


def _expand(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the files named, those of folders in sorted order."""
    for argument in arguments:
        _check_name(argument)
        path = Path(argument)
        if argument != "-" and path.is_dir():
            yield from sorted(str(entry) for entry in path.rglob("*") if entry.is_file())
        else:
            yield argument


def _probe_all(
    paths: Sequence[str],
) -> Iterator[tuple[str, ImageHeader | MediaError | OSError]]:
    batches = range(0, len(paths), _PROBE_BATCH)
    for start in _progress(batches, len(batches), "probing"):
        batch = paths[start : start + _PROBE_BATCH]
        results = iter(probe_files([path for path in batch if path != "-"]))
        for path in batch:
            yield path, _probe_stdin() if path == "-" else next(results)


def _probe_stdin() -> ImageHeader | MediaError:
    try:
        return probe(_read("-"))
    except MediaError as error:
        return error


def _header_row(path: str, header: ImageHeader) -> tuple[str, ...]:
    def text(value: object) -> str:
        return {None: "?", True: "yes", False: "no"}.get(value, str(value))  # type: ignore[call-overload, no-any-return]

    return (
        path,
        header.format,
        f"{header.width}x{header.height}",
        "x".join(map(str, header.upright_size)),
        text(header.mode),
        str(header.bits or "?"),
        text(header.has_alpha),
        str(header.frame_count or "?"),
    )


def _key(options: argparse.Namespace) -> int:
    mode = None if options.image_mode.lower() == "none" else options.image_mode
    spec = ImageMediaIO(mode).get_decode_spec()
    keys = [(path, derive_media_key(_read(path), spec).hex()) for path in options.files]
    for path, key in keys:
        print(json.dumps({"file": path, "key": key}) if options.json else f"{key}  {path}")
    return 0


def _features(options: argparse.Namespace) -> int:
    del options
    print(json.dumps(features(), indent=2))
    return 0


def _demo(options: argparse.Namespace) -> int:
    del options
    _quiet_transformers()
    from safelight.demo import run

    return run()


def _read(path: str) -> bytes:
    """Return the content of a file, or of standard input for ``-``."""
    _check_name(path)
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        # Without blocking, because opening a pipe would wait for somebody who writes to it.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SafelightError(f"{path}: not a regular file")
            return file.read()
    except OSError as error:
        raise SafelightError(f"{path}: {error.strerror}") from error


def _check_name(path: str) -> None:
    """Refuse what is no file's name: an unset variable of a shell would be the current folder."""
    if not path or "\0" in path:
        raise SafelightError(f"{path!r} is not the name of a file")


def _fail(message: str) -> int:
    # One line, also where a file's name has several.
    line = message.translate({ord("\n"): "\\n", ord("\r"): "\\r"})
    with suppress(OSError):  # nobody reads it
        print(f"safelight: {line}", file=sys.stderr)
    return 1


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"not a number of pixels: {text!r}")
    return int(text)


def _gigabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < _MAX_GIGABYTES:
        raise argparse.ArgumentTypeError(f"not a number of gigabytes: {text!r}")
    return number


def _quiet_transformers() -> None:
    """Keep transformers from advising on standard error, which is for failures of the command."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def _progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield `items`, with a bar on a terminal where there are several."""
    if total > 1 and sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track
        except ImportError:
            pass
        else:
            yield from track(items, label, total, console=Console(stderr=True), transient=True)
            return
    yield from items


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
