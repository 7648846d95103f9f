"""`.skeleton` files: read to the bits that Python's float gives; refused where they are broken."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from indrnn.tasks.skeleton.ntu.bodies import parse

from .writer import FIRST_ID, Body, moving, standing, text_of


def two_bodies(length: int = 3) -> bytes:
    pairs = zip(moving(length), moving(length, 1.0, seed=2), strict=True)
    return text_of([[Body(a), Body(b, FIRST_ID + 1)] for a, b in pairs])


def same(left: tuple[NDArray[Any], ...], right: tuple[NDArray[Any], ...]) -> None:
    for a, b in zip(left, right, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def with_word(word: bytes, line: int = 5, field: int = 1) -> bytes:
    """A file of one body in which one word is another; lines and fields from 1, and line 5 is the first joint."""
    lines = text_of([[Body(standing())]]).split(b"\n")
    words = lines[line - 1].split()
    words[field - 1] = word
    lines[line - 1] = b" ".join(words)
    return b"\n".join(lines)


# ---- what is read


def test_what_was_written_is_parse() -> None:
    first, second = moving(4), moving(4, 1.0, seed=7)
    frames = [[Body(first[0])], [], [Body(first[2]), Body(second[2], FIRST_ID + 1)], [Body(second[3], FIRST_ID + 1)]]
    counts, ids, joints = parse(text_of(frames))
    assert counts.tolist() == [1, 0, 2, 1]
    assert ids.tolist() == [FIRST_ID, FIRST_ID, FIRST_ID + 1, FIRST_ID + 1]  # no two are the same as floats
    written = np.stack([first[0], first[2], second[2], second[3]])
    digits = np.array([float(f"{value:.7g}") for value in written.flat]).astype(np.float32)
    assert np.array_equal(joints.reshape(-1), digits)


def test_a_frame_by_hand() -> None:
    joints = "".join(f"{j}.5 -{j}e-2 +.25 1 2 3 4 5 6 7 8 {j % 3}\n" for j in range(25))
    parsed = parse(f"1\n1\n{FIRST_ID} 0 1 1 1 1 0 -0.1 0.2 2\n25\n{joints}".encode())[2]
    j = np.arange(25)
    expected = np.stack([j + 0.5, -j / 100, np.full(25, 0.25)], axis=1).astype(np.float32)
    assert np.array_equal(parsed[0], expected)


@pytest.mark.parametrize("change", ["crlf", "blanks", "blank lines", "no last newline", "odd words that are not kept"])
def test_the_same_written_otherwise(change: str) -> None:
    text = two_bodies()
    other = {
        "crlf": text.replace(b"\n", b"\r\n"),
        "blanks": b"  " + text.replace(b" ", b" \t ").replace(b"\n", b" \n\t"),
        "blank lines": b"\n \n" + text.replace(b"\n", b"\n\n") + b"\r\n",
        "no last newline": text.rstrip(),
        "odd words that are not kept": re.sub(rb"(?m)^(\S+ \S+ \S+) \S+ \S+ ", rb"\1 -inf -1.#IND ", text),
    }[change]
    assert other != text
    same(parse(other), parse(text))


def test_no_frames() -> None:
    counts, _, joints = parse(b"0\n")
    assert counts.shape == (0,)
    assert joints.shape == (0, 25, 3)


NUMBERS = [
    *("0", "-0", "+0.0", "5.", ".5", "-.5e1", "1E2", "1e+02", "00012.500", "1e-400", "0e999999", "3.4028234e38"),
    *("0.1", "0.30000000000000004", "9007199254740993", "9007199254740992.5", "123456789012345678901234567890e-29"),
    *("1.00000005960464477540", "16777217", "1.4e-45", "7e-46", "8.98846567431158e-40", "1e-22", "1e22", "1e23"),
    *("18446744073709551616", "18446744073709551617e-10", "0.00000000000000000000000000000000000012345", "1e00000003"),
]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_those_of_python(number: str) -> None:
    expected = np.float64(float(number)).astype(np.float32)
    parsed = parse(with_word(number.encode()))[2][0, 0, 0]
    assert parsed.tobytes() == expected.tobytes()


def random_number(random: Random) -> str:
    """In any way of writing it, within the range of float32."""
    if random.random() < 0.2:
        return repr(random.uniform(-1, 1) * 10.0 ** random.randint(-40, 30))
    before, after = ("".join(random.choices("0123456789", k=random.randint(0, random.choice([2, 25])))) for _ in "xy")
    exponent = f"{random.choice('eE')}{random.choice(['', '+', '-'])}{random.randint(0, 12)}"
    sign, power = random.choice(["", "+", "-"]), random.choice(["", exponent])
    return f"{sign}{before or '0'}{random.choice(['', '.' + after])}{power}"


def test_random_numbers_are_those_of_python() -> None:
    random = Random(0)
    for _ in range(60):
        numbers = [random_number(random) for _ in range(75)]
        rows = "".join(f"{' '.join(numbers[3 * j : 3 * j + 3])} 1 2 3 4 5 6 7 8 2\n" for j in range(25))
        parsed = parse(f"1\n1\n{FIRST_ID} 0 1 1 1 1 0 -0.1 0.2 2\n25\n{rows}".encode())[2]
        assert parsed.tobytes() == np.array([float(number) for number in numbers]).astype(np.float32).tobytes()


# ---- what is refused, with a word on why

BROKEN = {
    "empty": (b"", "breaks off: the number of frames"),
    "blank": (b" \r\n\n", "breaks off: the number of frames"),
    "not a number": (b"frames\n", "line 1: the number of frames must be a whole number, got 'frames'"),
    "negative": (b"-1\n", "line 1: the number of frames must be a whole number, got '-1'"),
    "a fraction": (b"1.0\n", "line 1: the number of frames must be"),
    "binary": (b"1\n1\n\x00\x00", "line 3: the byte 0x00 is not text"),
    "not ascii": ("1\n1\n٣".encode(), "line 3: the byte 0xd9 is not text"),
    "two counts": (b"1 1\n", "line 1: expected 1 field for the number of frames, got 2"),
    "many frames": (b"1000000000000\n0\n", "breaks off: the number of bodies"),
    "more frames than numbers": (b"9" * 30 + b"\n0\n", "the number of frames must be"),
    "many bodies": (b"1\n1000000000000\n", "line 2: the number of bodies must be at most 6, got '1000000000000'"),
    "seven bodies": (text_of([[Body(standing())] * 7]), "line 2: the number of bodies must be at most 6, got '7'"),
    "24 joints": (text_of([[Body(standing()[:24])]]), "line 4: the number of joints must be 25, got '24'"),
    "26 joints": (text_of([[Body(np.zeros((26, 3)))]]), "line 4: the number of joints must be 25, got '26'"),
    "a frame too many": (b"0\n0\n", "line 2: more than the frames"),
    "nan": (with_word(b"nan"), "line 5: a joint's position must be three finite numbers, got 'nan'"),
    "infinity": (with_word(b"-inf", 7, 3), "line 7: a joint's position must be three finite numbers, got '-inf'"),
    "too large for float32": (with_word(b"1e39", field=2), "line 5: a joint's position must be three finite"),
    "too large for float64": (with_word(b"1e400"), "line 5: a joint's position must be three finite"),
    "a word": (with_word(b"x" * 50), "got 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'"),
    "two points": (with_word(b"1.2.3"), "three finite numbers, got '1.2.3'"),
    "an exponent without digits": (with_word(b"1e"), "three finite numbers, got '1e'"),
    "a point alone": (with_word(b"."), "three finite numbers"),
    "a sign alone": (with_word(b"-"), "three finite numbers"),
    "an underscore": (with_word(b"1_0"), "three finite numbers"),
    "hexadecimal": (with_word(b"0x10"), "three finite numbers"),
    "a comma": (with_word(b"0,5"), "three finite numbers"),
    "id not whole": (with_word(b"7.2057594037931101e16", 3), "line 3: bodyID must be a whole number"),
    "id too large": (with_word(b"9223372036854775808", 3), "line 3: bodyID must be"),
    "state not whole": (with_word(b"2.0", field=12), "line 5: trackingState must be a whole number, got '2.0'"),
    "state too large": (with_word(b"256", field=12), "line 5: trackingState must be"),
    "a field too many": (with_word(b"0 0", field=8), "line 5: expected 12 fields for a joint, got 13"),
    "a field too few": (with_word(b"", field=8), "line 5: expected 12 fields for a joint, got 11"),
    "a field of the body too few": (with_word(b"", 3, 4), "line 3: expected 10 fields for a body, got 9"),
}


@pytest.mark.parametrize(("text", "word"), BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused_with_a_reason(text: bytes, word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)):
        parse(text)


def test_id_of_any_size_that_fits() -> None:
    assert parse(with_word(b"9223372036854775807", 3))[1].tolist() == [2**63 - 1]
    assert parse(with_word(b"0" * 10 + b"7", 3))[1].tolist() == [7]


def test_every_truncation_is_refused() -> None:
    text = text_of([[Body(standing())]])
    for end in range(len(text) - 2):  # the last digit of all and the newline
        with pytest.raises(ValueError, match=r"line|breaks off"):
            parse(text[:end])


def test_mutilated_files_are_read_or_refused_with_a_reason() -> None:
    """Bytes changed, cut out, doubled: no other error than that of a broken file."""
    random, whole, read, reasons = Random(0), two_bodies(2), 0, []
    for _ in range(500):
        text = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            at, piece = random.randint(0, len(text)), random.choice([random.randbytes(2), *_PIECES])
            text[at : at + random.choice([0, 0, 1, 2, 30])] = piece
        try:
            counts, _, joints = parse(bytes(text))
        except ValueError as error:
            reasons.append(str(error))
        else:
            read += 1
            assert np.isfinite(joints).all()
            assert len(joints) == counts.sum()
    assert all(re.match(r"line \d+: |it breaks off: ", reason) for reason in reasons)
    assert 20 < read < 480  # some were still whole


_PIECES = [b"\n", b" ", b"\r\n", b"0", b"-", b".", b"e5", b"1e-30", b"nan", b"999999999999", b"\n1\n", b"\t", b"25\n"]
