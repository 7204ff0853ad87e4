"""Ranks on CUDA devices over the stub driver: which devices they take, what is said where they
cannot work together, and runs whose kernels lose each other."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from npusim import _runtime
from tests.runtime.test_cuda import run, stub  # noqa: F401

pytestmark = pytest.mark.skipif(
    "cuda" not in _runtime.device_names(), reason="CUDA devices are built on Linux alone"
)

# y = all ranks' x + their parts of w, in the stub's kernels.
PRELUDE = """
from dataclasses import replace
import numpy as np
import npusim
from npusim.errors import DeviceError, Error
from npusim.abi.kernels import KERNELS
from npusim.program.program import Access, BufferKind, Kernel, Operand, WeightPart
from tests.runtime.programs import Builder, stub_image

def program(ranks=2, count=8, named=None, **params):
    b = Builder()
    x, y = b.input("x", (count,)), b.output("y", (ranks * count,))
    w, t = b.weight("w", (count,)), b.buffer(BufferKind.TEMP, 4 * count)
    b.copy(x, t, count)
    b.copy(t, y, count)
    built = b.build()
    first, second = built.methods[0].commands
    read = Access.READ
    add = replace(first, operands=(Operand(x, 0, read), Operand(w, 0, read), first.operands[1]))
    given = {"bytes": 4 * count, "ranks": named or ranks, **params}
    gather = replace(second, kernel=1, params=KERNELS["all_gather"].pack(given))
    kernels = (
        replace(built.kernels[0], image=stub_image("add", count)),
        Kernel("all_gather", KERNELS["all_gather"].schema,
               stub_image("gather", count, exchange=True)),
    )
    method = replace(built.methods[0], commands=(add, gather))
    (weight,) = built.weights
    weight = replace(weight, part=WeightPart(0, ranks))
    return replace(built, kernels=kernels, methods=(method,), weights=(weight,),
                   target="cuda:sm_90", ranks=ranks)

def loaded(device, made=None):
    made = made or program()
    w = np.arange(made.ranks * 8, dtype=np.float32)
    return npusim.load(made, weights={"w": w}, device=device)

def right(session, ranks=2):
    x = 100 * np.arange(8, dtype=np.float32)
    return np.array_equal(session(x)[0], np.tile(x, ranks) + np.arange(8 * ranks))

def said(call):
    try:
        call()
    except Error as error:
        print(error)
    else:
        print("nothing")
"""


def outcome(stub: Path, code: str, **environment: str) -> str:  # noqa: F811
    return run(PRELUDE + textwrap.dedent(code), stub, **environment).strip()


def test_ranks_have_devices_of_their_own_or_share_one(stub: Path) -> None:  # noqa: F811
    code = """
    for device, ranks in (("cuda", 2), ("cuda:0,1", 2), ("cuda:2,1", 2), ("cuda:0,0", 2),
                          ("cuda:1", 2), ("cuda:2,0,2", 3)):
        session = loaded(device, program(ranks))
        print(all(right(session, ranks) for _ in range(3)), session.executor.device.description)
    """
    lines = outcome(stub, code, STUB_CUDA_DEVICES="3").splitlines()
    assert all(line.startswith("True 2 ranks of Stub GPU") for line in lines[:5])
    assert lines[5].startswith("True 3 ranks of Stub GPU")
    ways = [line.partition("; ")[2] for line in lines]
    peers, shared = "they exchange values by peer access", "they share devices, for tests"
    assert ways == [peers, peers, peers, shared, peers, shared]


def test_devices_that_ranks_cannot_have(stub: Path) -> None:  # noqa: F811
    code = """
    for device in ("cuda", "cuda:0,1", "cuda:0,0,0", "cuda:1,x"):
        said(lambda: loaded(device))
    """
    split = "the program is split among 2 ranks, and "
    few = (
        f"{split}this machine has 1 CUDA device, numbered from 0: there is no 1. "
        "Compile it for as many ranks as there are devices."
    )
    assert outcome(stub, code).splitlines() == [
        few, few, f"{split}cuda:0,0,0 names 3 CUDA devices; name one for each rank",
        "CUDA devices are named by their numbers, such as cuda:2,3; got cuda:1,x",
    ]  # fmt: skip


def test_devices_of_two_architectures(stub: Path) -> None:  # noqa: F811
    code = "said(lambda: loaded('cuda'))"
    assert outcome(stub, code, STUB_CUDA_DEVICES="2", STUB_CUDA_ARCH_1="80") == (
        "ranks run on devices of one architecture: CUDA device 0 (Stub GPU) is sm_90, and 1 "
        "(Stub GPU) is sm_80"
    )


def test_without_peer_access_values_go_through_the_host(stub: Path) -> None:  # noqa: F811
    code = """
    session = loaded("cuda")
    print(right(session), session.executor.device.description)
    """
    for name, why in (
        ("PEERS", "rank 0 (CUDA device 0) has no peer access to rank 1 (CUDA device 1)"),
        ("WRONG", "the test of peer access failed: rank 0 (CUDA device 0) got other bytes than "
                  "were sent"),
    ):  # fmt: skip
        value = "0" if name == "PEERS" else "1"
        got = outcome(stub, code, STUB_CUDA_DEVICES="2", **{f"STUB_CUDA_{name}": value})
        assert got.startswith("True ")
        assert got.endswith(
            f"they exchange values through the host's memory, which is slow, since {why}"
        )


def test_a_rank_that_is_waited_for_in_vain_ends_the_run(stub: Path) -> None:  # noqa: F811
    code = """
    session = loaded("cuda")
    print(right(session))
    said(lambda: right(session))
    print(right(session))
    """
    # The test of the exchange takes five.
    lines = outcome(stub, code, STUB_CUDA_DEVICES="2", STUB_CUDA_LOST="7").splitlines()
    assert lines == [
        "True",
        "rank 0 (CUDA device 0) waited 10 s for rank 1 (CUDA device 1), whose values did not come "
        "(block 5: exchange 7, after 6; rank 0 ended with 0 in block 0, 0 to 0 in all; rank 1 ended "
        "with 0 in block 0, 0 to 0 in all). The run has no results; states that it wrote are not to be relied on.",
        "True",
    ]


def test_the_doctor_says_who_reaches_whom(stub: Path) -> None:  # noqa: F811
    code = "from npusim.cli import main; main(['doctor'])"
    for devices, peers, says in (
        ("1", "1", "one device"),
        ("2", "1", "2 devices reach each other"),
        ("2", "0", "device 0 does not reach device 1: ranks there exchange values through the"),
    ):
        variables = {"STUB_CUDA_DEVICES": devices, "STUB_CUDA_PEERS": peers, "COLUMNS": "300"}
        assert says in " ".join(run(code, stub, **variables).split())


def test_buffers_lie_where_all_ranks_have_them(stub: Path) -> None:  # noqa: F811
    code = """
    session = loaded("cuda:0,0")
    device, x = session.executor.device, np.arange(8, dtype=np.float32)
    given = npusim.DeviceBuffer.from_numpy(x, device)
    (y,) = session.executor.run({"x": given}, session.weights).values()
    print(np.array_equal(y.to_numpy(), np.tile(x, 2) + np.arange(16)), device.description)
    other = npusim.DeviceBuffer.from_numpy(x, npusim.Device("cuda"))
    said(lambda: session.executor.run({"x": other}, session.weights))
    said(lambda: session(other))
    host = npusim.DeviceBuffer.from_numpy(x, npusim.Device("cpu"))
    said(lambda: session.executor.run({"x": host}, session.weights))
    """
    first, *refused = outcome(stub, code).splitlines()
    assert first.startswith("True 2 ranks of Stub GPU")
    assert len(refused) == 3 and all("lies on another device" in line for line in refused)


def test_commands_that_leave_their_operands(stub: Path) -> None:  # noqa: F811
    code = """
    for params in ({"bytes": 64}, {"named": 3}, {"bytes": -4}):
        said(lambda: loaded("cuda:0,0", program(**params)))
    alone = replace(program(), ranks=1, weights=(replace(program().weights[0], part=None),))
    said(lambda: npusim.load(alone, weights={"w": np.zeros(8, np.float32)}, device="cuda"))
    """
    lines = outcome(stub, code).splitlines()
    assert "all_gather refuses it: it passes the end of an operand" in lines[0]
    assert "all_gather refuses it: it is of 3 ranks" in lines[1]
    assert "all_gather refuses it: it passes the end of an operand" in lines[2]
    assert "only programs of several ranks exchange values" in lines[3]
