"""Changing files at random: JSON trees key by key, and bytes."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

# Where sums and products turn over, and what is of another kind.
NUMBERS = (
    *(0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 64, 255, 256, 65535, 65536, -2, -3, -128),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *(0.5, -0.0, 1e-300, 1e300, 1.5, 2.0),
)
OTHERS = (None, True, False, "", "x", [], {}, [0], [1, 2], "float32", "int64", "bool", "a\u0000b")
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8"),
    *("bool", "complex64", "uint16", "float8_e4m3fn"),
)

Place = tuple[Any, Any]  # a container, and the key or index in it


def places(tree: Any) -> list[Place]:
    """Returns every place of a tree, containers before what they hold."""
    found: list[Place] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], (dict, list)):
                stack.append(node[key])
    return found


def mutated_tree(tree: Any, chance: Random, words: tuple[str, ...] = ()) -> Any:
    """Returns a copy of a JSON tree with one to three changes.

    Args:
        words: strings that mean something where the tree has strings, such as operators' names.
    """
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        everything = places(tree)
        if everything:
            _change(*chance.choice(everything), everything, chance, words)
    return tree


def _change(
    node: Any, key: Any, everything: list[Place], chance: Random, words: tuple[str, ...]
) -> None:
    value = node[key]
    how = chance.random()
    if how < 0.1:
        del node[key]
    elif how < 0.2:
        other, place = chance.choice(everything)
        node[key] = copy.deepcopy(other[place])
    elif how < 0.27 and isinstance(value, list):
        if value and chance.random() < 0.5:
            value.append(copy.deepcopy(chance.choice(value)))
        else:
            chance.shuffle(value)
    elif how < 0.32:
        node[key] = copy.deepcopy(chance.choice(OTHERS))
    elif isinstance(value, bool):
        node[key] = not value
    elif isinstance(value, (int, float)):
        near = value + chance.choice((-1, 1, 2))
        node[key] = near if chance.random() < 0.5 else chance.choice(NUMBERS)
    elif isinstance(value, str):
        node[key] = _word(value, everything, chance, words)
    elif isinstance(node, dict) and chance.random() < 0.3:
        node[f"{key}x"] = node.pop(key)
    else:
        node[key] = chance.choice((None, 0, "x", [], {}))


def _word(value: str, everything: list[Place], chance: Random, words: tuple[str, ...]) -> str:
    texts = [n[k] for n, k in everything if isinstance(n[k], str)]
    return chance.choice(
        (chance.choice(texts), chance.choice(DTYPES), chance.choice(words or ("x",)), value[:-1])
    )


def mutated_bytes(data: bytes, chance: Random) -> bytes:
    """Returns bytes with one to four changes: flips, telling numbers, cuts, copies."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not out:
            return bytes(out)
        at = chance.randrange(len(out))
        how = chance.randrange(6)
        if how == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, chance.randrange(256)))
        elif how == 2:
            width = chance.choice((2, 4, 8))
            out[at : at + width] = (chance.choice(NUMBERS[:29]) % (1 << 8 * width)).to_bytes(
                width, "little"
            )
        elif how == 3:
            del out[at : at + chance.choice((1, 2, 8, 64))]
        elif how == 4:
            out[at:at] = out[at : at + chance.choice((1, 4, 16, 64))]
        else:
            del out[at:]
    return bytes(out)
