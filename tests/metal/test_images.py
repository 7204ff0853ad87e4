"""Hostile images: whatever stands there, the answer is an Error or a run, never a crash."""

from __future__ import annotations

import json
import random
import struct
import zlib

import numpy as np
import pytest

import npusim
from npusim.errors import Error, ProgramFormatError
from tests.metal.programs import MAGIC, UNARY, frame, image, one_command

TEXT = UNARY.format(expression="x[i] + 1.0f")
BLOB = zlib.compress(TEXT.encode())
LAUNCH = {"entry": "run", "grid": [1, 1, 1], "block": [8, 1, 1], "shared": 0}
HEADER = {"arch": "apple7", "launches": [LAUNCH], "source": [0, len(BLOB)]}
X = np.arange(8, dtype=np.float32)


def load(code: bytes, device: npusim.Device) -> npusim.Session:
    return npusim.load(one_command(code), device=device)


def test_a_sound_image_runs(device: npusim.Device) -> None:
    more = {**HEADER, "recipe": {"settled": 1}, "later": [None, {"x": 1.5}], "scratch": 0}
    np.testing.assert_array_equal(load(frame(more, BLOB), device)(X)[0], X + 1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "has no Metal code"),
        (b"NPUMETL", "its image is not one for Metal"),
        (b"NPUCUDA\x01" + bytes(20), "has no Metal code for: code_1. Compile the model with"),
        (b"NPUMETL\x02" + bytes(20), "its image is not one for Metal"),
        (MAGIC + struct.pack("<I", 1), "the header passes the end of its image"),
        (MAGIC + b"\xff\xff\xff\xff", "the header passes the end"),
        (frame(b""), "byte 0"),
        (frame(b"[]"), "byte 0"),
        (frame({}), "there is no arch"),
        (frame({"arch": "apple7"}), "there is no launches"),
        (frame(b'{"arch": "apple7", "arch": "apple7", "launches": []}'), "arch appears twice"),
        (frame({**HEADER, "arch": ""}), "not plain text"),
        (frame({**HEADER, "arch": "x" * 257}), "not plain text"),
        (frame({**HEADER, "arch": 7}, BLOB), "byte"),
        (frame({**HEADER, "source": [0, 0]}), "it holds no source"),
        (frame({**HEADER, "source": [0]}, BLOB), r"expected \[offset, size\]"),
        (frame({**HEADER, "source": [0, 1, 1]}, BLOB), r"expected \[offset, size\]"),
        (frame({**HEADER, "source": [1, len(BLOB)]}, BLOB), "a blob passes the end"),
        (frame({**HEADER, "source": [2**62, 2**62]}, BLOB), "more than 1099511627776"),
        (frame({**HEADER, "scratch": 2**40 + 1}, BLOB), "scratch is 1099511627777"),
        (frame({**HEADER, "scratch": -1}, BLOB), "byte"),
        (frame({**HEADER, "failure": 1}, BLOB), "byte"),
        (frame({**HEADER, "launches": [LAUNCH] * 1025}, BLOB), "too many launches"),
        (frame(HEADER, BLOB[:-9] + bytes(9)), "code_1: "),
        (frame({**HEADER, "source": [0, 3]}, BLOB), "code_1: "),
    ],
)
def test_what_is_refused(device: npusim.Device, code: bytes, message: str) -> None:
    with pytest.raises(Error, match=message):
        load(code, device)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": ""}, "not plain text"),
        ({"entry": "a\nb"}, "not plain text"),
        ({"grid": [1, 1]}, "grid has fewer than 3"),
        ({"grid": [1, 1, 1, 1]}, "grid has more than 3"),
        ({"grid": [0, 1, 1]}, "grid is 0 somewhere"),
        ({"grid": [2**31, 1, 1]}, "grid is 2147483648"),
        ({"grid": [2**31 - 1, 2**31 - 1, 2**31 - 1]}, "too many threadgroups"),
        ({"block": [1025, 1, 1]}, "block is 1025"),
        ({"block": [64, 64, 1]}, "a block of 4096 threads"),
        ({"block": [8, 0, 1]}, "block is 0 somewhere"),
        ({"shared": 65537}, "shared is 65537"),
        ({"shared": "x"}, "byte"),
    ],
)
def test_launches_that_are_refused(
    device: npusim.Device, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        load(frame({**HEADER, "launches": [{**LAUNCH, **change}]}, BLOB), device)


def test_a_source_of_endless_size_is_refused(device: npusim.Device) -> None:
    blob = zlib.compress(b"\n" * (20 << 20), 9)
    with pytest.raises(ProgramFormatError, match="its source is longer than 16777216 bytes"):
        load(frame({**HEADER, "source": [0, len(blob)]}, blob), device)


def test_mutants_are_refused_or_run(device: npusim.Device) -> None:
    """Bytes of the header changed, doubled, dropped: the text is the one that is compiled."""
    rng = random.Random(5)
    text = json.dumps(HEADER).encode()
    refused = ran = 0
    for _ in range(600):
        mutant = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mutant))
            choice = rng.randrange(3)
            if choice == 0:
                mutant[at] = rng.choice(b'0123456789-[]{},:" eE.\x00\xff')
            elif choice == 1:
                mutant[at:at] = mutant[at : at + rng.randint(1, 9)]
            else:
                del mutant[at : at + rng.randint(1, 4)]
        try:
            session = load(frame(bytes(mutant), BLOB), device)
        except Error as error:
            refused += 1
            assert "code_1" in str(error)
        else:
            ran += 1
            del session
    assert refused > 300
    assert ran > 10


def test_the_text_of_an_image_stays_whole(device: npusim.Device) -> None:
    np.testing.assert_array_equal(load(image(TEXT, threads=8), device)(X)[0], X + 1)
