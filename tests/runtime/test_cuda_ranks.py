"""Ranks on CUDA devices over the stub driver: which devices they take, what is said where they
cannot work together, and runs whose kernels lose each other."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from npusim import _runtime
from tests.runtime.test_cuda import ROOT, run, stub  # noqa: F401

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


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with NCCL's stub."""
    folder = tmp_path_factory.mktemp("nccl")
    source = ROOT / "tests" / "cpp" / "stub_nccl.cpp"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{ROOT}", "-o", str(folder / "libnccl.so.2")]
    subprocess.run(["c++", *options, str(source)], check=True)
    return str(folder)


@pytest.fixture(scope="module")
def no_nccl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with what is no NCCL, whatever this machine has."""
    folder = tmp_path_factory.mktemp("no_nccl")
    options = ["-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(folder / "libnccl.so.2")]
    subprocess.run(["cc", *options], check=True)
    return str(folder)


UNREACHED = "rank 0 (CUDA device 0) has no peer access to rank 1 (CUDA device 1)"
RUN_TWICE = """
session = loaded("cuda")
print(right(session), right(session), session.executor.device.description)
"""


def test_without_peer_access_values_go_by_nccl(stub: Path, nccl: str) -> None:  # noqa: F811
    wrong = "the test of peer access failed: rank 0 (CUDA device 0) got other bytes than were sent"
    for variables, why in (
        ({"STUB_CUDA_PEERS": "0"}, f", since {UNREACHED}"),
        ({"STUB_CUDA_WRONG": "1"}, f", since {wrong}"),
        ({"NPUSIM_CUDA_EXCHANGE": "nccl"}, ""),
    ):
        given = {"STUB_CUDA_DEVICES": "2", "NPUSIM_CUDA_PATH": nccl, **variables}
        got = outcome(stub, RUN_TWICE, **given)
        assert got.startswith("True True ")
        assert got.endswith("they exchange values by NCCL 2.28.3" + why)


def test_methods_of_several_sizes_go_by_nccl(stub: Path, nccl: str) -> None:  # noqa: F811
    """A larger one that is made later leaves those before it what they have."""
    code = """
    device = npusim.Device("cuda")
    small, large = program(count=8), program(count=4096)
    first = npusim.load(small, weights={"w": np.arange(16, dtype=np.float32)}, device=device)
    print(right(first))
    w = np.arange(2 * 4096, dtype=np.float32)
    second = npusim.load(large, weights={"w": w}, device=device)
    x = np.ones(4096, np.float32)
    for _ in range(2):
        print(np.array_equal(second(x)[0], np.tile(x, 2) + w), right(first))
    """
    variables = {"STUB_CUDA_DEVICES": "2", "NPUSIM_CUDA_PATH": nccl, "STUB_CUDA_PEERS": "0"}
    assert outcome(stub, code, **variables).split() == ["True"] * 5


def test_nccl_that_fails_ends_the_run(stub: Path, nccl: str) -> None:  # noqa: F811
    code = """
    session = loaded("cuda")
    print(right(session))
    said(lambda: right(session))
    said(lambda: right(session))
    """
    # The test of the exchange takes five.
    variables = {"STUB_CUDA_DEVICES": "2", "NPUSIM_CUDA_PATH": nccl, "STUB_CUDA_PEERS": "0"}
    assert outcome(stub, code, **variables, STUB_NCCL_FAIL="7").splitlines() == [
        "True",
        "NCCL 2.28.3 could not gather values: unhandled cuda error",
        "NCCL has been given up after a failure: load the program again",
    ]


def test_without_peers_and_nccl_values_go_through_the_host(
    stub: Path,  # noqa: F811
    nccl: str,
    no_nccl: str,
) -> None:
    old = f"{nccl}/libnccl.so.2 is NCCL 2.10.3, and npusim uses versions from 2.11 on"
    refuses = "NCCL 2.28.3 could not start for these devices: unhandled cuda error"
    wrong = "the test of NCCL failed: rank 0 (CUDA device 0) got other bytes than were sent"
    for folder, variables, why in (
        (no_nccl, {}, f"{no_nccl}/libnccl.so.2 is no NCCL: it has no ncclGetVersion"),
        (nccl, {"STUB_NCCL_VERSION": "21003"}, old),
        (nccl, {"STUB_NCCL_FAIL": "0"}, refuses),
        (nccl, {"STUB_NCCL_WRONG": "1"}, wrong),
        (nccl, {"STUB_NCCL_FAIL": "3"},
         "the test of NCCL failed: NCCL 2.28.3 could not gather values: unhandled cuda error"),
    ):  # fmt: skip
        given = {"STUB_CUDA_DEVICES": "2", "STUB_CUDA_PEERS": "0", "NPUSIM_CUDA_PATH": folder}
        got = outcome(stub, RUN_TWICE, **given, **variables)
        assert got.startswith("True True ")
        assert got.endswith(
            "they exchange values through the host's memory, which is slow, since "
            f"{UNREACHED}; {why}"
        )


def test_a_way_that_is_asked_for_is_the_only_one(
    stub: Path,  # noqa: F811
    nccl: str,
    no_nccl: str,
) -> None:
    code = "said(lambda: print(right(loaded('cuda'))))"
    none = "ranks cannot exchange values on these devices: "
    for way, folder, variables, says in (
        ("peers", nccl, {"STUB_CUDA_PEERS": "0"}, none + UNREACHED),
        ("nccl", no_nccl, {}, f"{none}{no_nccl}/libnccl.so.2 is no NCCL: it has no ncclGetVersion"),
        ("host", nccl, {}, "True\nnothing"),
        ("nvls", nccl, {}, "NPUSIM_CUDA_EXCHANGE is peers, nccl or host; got nvls"),
    ):
        given = {"STUB_CUDA_DEVICES": "2", "NPUSIM_CUDA_PATH": folder, "NPUSIM_CUDA_EXCHANGE": way}
        assert outcome(stub, code, **given, **variables) == says
    shared = "said(lambda: loaded('cuda:0,0'))"
    given = {"NPUSIM_CUDA_PATH": nccl, "NPUSIM_CUDA_EXCHANGE": "nccl"}
    assert outcome(stub, shared, **given) == none + "NCCL does not let ranks share a device"


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
        "(block 5: exchange 7, after 6; rank 0 ended with 0 in block 0, 0 to 0 in all; rank 1 "
        "ended with 0 in block 0, 0 to 0 in all). The run has no results; states that it wrote "
        "are not to be relied on.",
        "True",
    ]


@pytest.mark.parametrize("way", ["peers", "nccl"])
def test_threads_with_programs_on_the_same_ranks(
    stub: Path,  # noqa: F811
    nccl: str,
    way: str,
) -> None:
    """Each of them is started on all ranks before the other one is on any."""
    code = """
    import threading
    device, w = npusim.Device("cuda"), np.arange(16, dtype=np.float32)
    sessions = [loaded(device) for _ in range(2)]
    outcomes = [[], []]

    def work(which):
        for turn in range(20):
            x = np.full(8, 1000 * which + turn, np.float32)
            outcomes[which].append(np.array_equal(sessions[which](x)[0], np.tile(x, 2) + w))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(outcomes[0]), sum(outcomes[1]))
    """
    given = {"STUB_CUDA_DEVICES": "2", "NPUSIM_CUDA_PATH": nccl, "NPUSIM_CUDA_EXCHANGE": way}
    assert outcome(stub, code, **given, STUB_CUDA_PAUSE="1000") == "20 20"


def test_the_doctor_says_who_reaches_whom(stub: Path) -> None:  # noqa: F811
    code = "from npusim.cli import main; main(['doctor'])"
    for devices, peers, says in (
        ("1", "1", "one device"),
        ("2", "1", "2 devices reach each other"),
        ("2", "0", "device 0 does not reach device 1: ranks there exchange values by NCCL or"),
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
