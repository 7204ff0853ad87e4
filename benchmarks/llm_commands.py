"""Where a language model's time goes: the median time of each command, by kernel and by product.

    python benchmarks/llm_commands.py PROGRAM WEIGHTS [--context 0] [--threads 2]

`npusim profile` shows a method's commands in more ways, and writes a trace; this keeps the table
of all methods, and how fast products run, by shape.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import npusim
from npusim.abi.kernels import KERNELS
from npusim.cli.answer import duration, table


def report(program: npusim.CompiledProgram, profile: npusim.Profile) -> None:
    """Prints the times by kernel and op, and the rates of products by shape."""
    print(
        f"{profile.method} after {profile.context}: {duration(profile.commands_seconds)} in "
        f"{len(profile.commands)} commands, {duration(profile.run_seconds)} unobserved; "
        f"{profile.device}"
    )
    kinds, shapes = defaultdict(list), defaultdict(list)
    for command in profile.commands:
        kinds[command.kernel, command.op].append(command.seconds)
        if command.kernel.endswith("linear"):
            source = program.method(profile.method).commands[command.index]
            p = KERNELS[command.kernel].unpack(source.params)
            shapes[p["m"], sum(p["rows"][: p["segments"]]), p["k"]].append(command)
    rows = ((*kind, len(times), duration(sum(times))) for kind, times in kinds.items())
    print(table(rows, "kernel", "op", "count", "time"))
    for (m, n, k), commands in shapes.items():
        seconds = sum(command.seconds for command in commands)
        moved = sum(command.bytes_read + command.bytes_written for command in commands)
        rate = 1e-9 * sum(command.operations for command in commands) / seconds
        mean = duration(seconds / len(commands))
        print(f"{m} x {k} by {n}: {mean}, {rate:.0f} GFLOP/s, {1e-9 * moved / seconds:.1f} GB/s")


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("weights")
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of a cpu device")
    args = parser.parse_args()
    program = npusim.CompiledProgram.load(args.program)
    device = npusim.Device(program.target.partition(":")[0], threads=args.threads)
    weights = npusim.load_weights(args.weights, program, device)
    for method in program.methods:
        profile = npusim.profile_program(
            program, weights, method=method.name, context=args.context, device=device, seconds=5
        )
        report(program, profile)


if __name__ == "__main__":
    main()
