"""JPEG files of random coefficients, in samplings and scans that Pillow does not write.

Owns the bits of a file that any decoder takes; every code of a Huffman table has the same length.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence

Factors = Sequence[tuple[int, int]]

# Every run of zeros before a coefficient of up to ten bits, the end of a block and sixteen zeros.
AC_SYMBOLS = [0, *(run << 4 | bits for run in range(16) for bits in range(1, 11)), 0xF0]
AC_CODES = {symbol: code for code, symbol in enumerate(AC_SYMBOLS)}


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


class Bits:
    """The entropy-coded bits between two restart markers."""

    def __init__(self) -> None:
        self.value = 0
        self.count = 0

    def put(self, value: int, count: int) -> None:
        self.value = self.value << count | value
        self.count += count

    def to_bytes(self) -> bytes:
        padding = -self.count % 8
        filled = (self.value + 1 << padding) - 1
        return filled.to_bytes((self.count + padding) // 8, "big").replace(b"\xff", b"\xff\0")


def put_signed(bits: Bits, value: int, count: int) -> None:
    bits.put(value if value > 0 else value + (1 << count) - 1, count)


class Scan:
    """One scan of random coefficients: ``first`` to ``last`` of each block, in zigzag order."""

    def __init__(
        self, source: random.Random, first: int, last: int, *, high: int = 0, low: int = 0
    ) -> None:
        self.source = source
        self.first, self.last, self.high, self.low = first, last, high, low
        self.levels = [0] * 4

    def restart(self) -> None:
        self.levels = [0] * 4

    def put_block(self, bits: Bits, component: int) -> None:
        if self.high:
            bits.put(self.source.getrandbits(1), 1)
            return
        at = self.first
        if at == 0:
            level = self.source.randrange(-60, 61)
            difference = level - self.levels[component]
            self.levels[component] = level
            count = abs(difference).bit_length()
            bits.put(count, 4)
            put_signed(bits, difference, count) if count else None
            at = 1
        while at <= self.last:
            run = self.source.choice((0, 0, 1, 2, 5, 16, 40))
            if at + run > self.last:
                bits.put(AC_CODES[0], 8)
                return
            at += run + 1
            while run > 15:
                bits.put(AC_CODES[0xF0], 8)
                run -= 16
            value = self.source.choice((1, -1)) * self.source.choice((1, 1, 2, 7, 30))
            count = abs(value).bit_length()
            bits.put(AC_CODES[run << 4 | count], 8)
            put_signed(bits, value, count)


def units(size: tuple[int, int], factors: Factors, chosen: Sequence[int]) -> Iterator[list[int]]:
    """The components of the blocks of each unit of a scan over `chosen` components."""
    across = max(horizontal for horizontal, _ in factors)
    down = max(vertical for _, vertical in factors)
    width, height = size
    if len(chosen) == 1:
        horizontal, vertical = factors[chosen[0]]
        columns = math.ceil(math.ceil(width * horizontal / across) / 8)
        rows = math.ceil(math.ceil(height * vertical / down) / 8)
        unit = [chosen[0]]
    else:
        columns, rows = math.ceil(width / (8 * across)), math.ceil(height / (8 * down))
        unit = [at for at in chosen for _ in range(factors[at][0] * factors[at][1])]
    for _ in range(columns * rows):
        yield unit


def put_scan(
    scan: Scan, size: tuple[int, int], factors: Factors, chosen: Sequence[int], interval: int
) -> bytes:
    names = b"".join(bytes([at + 1, 0]) for at in chosen)
    body = bytes([len(chosen)]) + names + bytes([scan.first, scan.last, scan.high << 4 | scan.low])
    parts, bits = [segment(0xDA, body)], Bits()
    for number, unit in enumerate(units(size, factors, chosen)):
        if interval and number and number % interval == 0:
            parts += [bits.to_bytes(), bytes([0xFF, 0xD0 + (number // interval - 1) % 8])]
            scan.restart()
            bits = Bits()
        for component in unit:
            scan.put_block(bits, component)
    return b"".join([*parts, bits.to_bytes()])


def jpeg(
    source: random.Random,
    size: tuple[int, int],
    factors: Factors,
    *,
    interval: int = 0,
    is_progressive: bool = False,
) -> bytes:
    """A JPEG with components of the sampling `factors` and a restart every `interval` units."""
    width, height = size
    frame = struct.pack(">BHHB", 8, height, width, len(factors)) + b"".join(
        bytes([at + 1, horizontal << 4 | vertical, 0])
        for at, (horizontal, vertical) in enumerate(factors)
    )
    dc_table = bytes([0, *(12 if length == 4 else 0 for length in range(1, 17)), *range(12)])
    ac_table = bytes(
        [16, *(len(AC_SYMBOLS) if length == 8 else 0 for length in range(1, 17)), *AC_SYMBOLS]
    )
    parts = [
        b"\xff\xd8",
        segment(0xDB, b"\0" + bytes(source.randrange(1, 12) for _ in range(64))),
        segment(0xC2 if is_progressive else 0xC0, frame),
        segment(0xC4, dc_table + ac_table),
    ]
    if interval:
        parts.append(segment(0xDD, struct.pack(">H", interval)))
    every = range(len(factors))
    if is_progressive:
        scans = [(Scan(source, 0, 0, low=1), every), (Scan(source, 0, 0, high=1), every)]
        scans += [(Scan(source, 1, 5), [at]) for at in every]
        scans += [(Scan(source, 6, 63), [at]) for at in every]
    else:
        scans = [(Scan(source, 0, 63), every)]
    parts += [put_scan(scan, size, factors, chosen, interval) for scan, chosen in scans]
    return b"".join([*parts, b"\xff\xd9"])
