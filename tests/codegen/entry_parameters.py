"""What a cubin says its entries take, as the driver tells it who loads one."""

from __future__ import annotations

import struct

from npusim.codegen.launch_config import LaunchConfig

_SECTION = struct.Struct("<II4Q2I2Q")
_PREFIX = ".nv.info."
_PARAMETER, _PARAMETER_BYTES = b"\x04\x17", 12  # EIATTR_KPARAM_INFO
MAP_BYTES = 128


def entry_parameters(cubin: bytes) -> dict[str, list[int]]:
    """Returns the bytes of each parameter, by entry.

    They are attributes in sections of their own: a format, a code, and for this one a length and
    index:i32 ordinal:i16 offset:i16 flags:i32, whose upper 14 bits are the size.
    """
    assert cubin[:6] == b"\x7fELF\x02\x01"
    (at,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<2H", cubin, 60)
    rows = [_SECTION.unpack_from(cubin, at + i * _SECTION.size) for i in range(count)]
    found = {}
    for row in rows:
        start = rows[names][4] + row[0]
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(_PREFIX):
            found[name.removeprefix(_PREFIX)] = _parameters(cubin[row[4] : row[4] + row[5]])
    return found


def _parameters(attributes: bytes) -> list[int]:
    sizes, at = {}, 0
    while at < len(attributes):
        length = 0
        if attributes[at] == 4:  # a length follows; else what there is of it is in its place
            (length,) = struct.unpack_from("<H", attributes, at + 2)
        if attributes[at : at + 2] == _PARAMETER:
            assert length == _PARAMETER_BYTES
            _, ordinal, _, flags = struct.unpack_from("<IHHI", attributes, at + 4)
            sizes[ordinal] = flags >> 18
        at += 4 + length
    return [sizes[i] for i in range(len(sizes))]


def taken(config: LaunchConfig, operands: int) -> list[int]:
    """Returns the bytes of what the runtime gives to each launch of a command."""
    own = (config.scratch > 0) + config.failure + config.exchange
    return [8] * (operands + own) + [MAP_BYTES] * len(config.maps)
