"""The command tree: every verb, in the order a model goes through them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from npusim import __version__
from npusim.cli import (
    batch,
    bench,
    calibrate,
    check,
    compare,
    compile,
    demo,
    doctor,
    explain,
    export_onnx,
    extract,
    generate,
    import_model,
    info,
    pack_weights,
    partition,
    profile,
    quantize,
    reduce,
    reproduce,
    run,
    selftest,
    serve,
    simulate,
    simulate_llm,
    sweep,
    targets,
    tune,
    upgrade,
    verify,
    view,
)
from npusim.cli.answer import NO, answer_of, refuse, show
from npusim.cli.factory import import_module
from npusim.cli.stopping import Stopped, stopped_by_signals


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="npusim")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="FILE",
    help="Import this module or .py file first, for the operators it registers; repeatable.",
)
def npusim(modules: tuple[str, ...]) -> None:
    """Compile PyTorch models to one file and run that file natively.

    Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 a defect of npusim, 130 interrupted.
    """
    for name in modules:
        import_module(name)


for _verb in (
    extract.extract,
    import_model.import_model,
    export_onnx.export_onnx,
    targets.targets,
    check.check,
    quantize.quantize,
    compile.compile_model,
    partition.partition,
    tune.tune,
    upgrade.upgrade,
    pack_weights.pack_weights,
    info.info,
    view.view,
    run.run,
    generate.generate,
    serve.serve,
    batch.batch,
    verify.verify,
    reduce.reduce,
    reproduce.reproduce,
    bench.bench,
    profile.profile,
    calibrate.calibrate,
    simulate.simulate,
    simulate_llm.simulate_llm,
    explain.explain,
    sweep.sweep,
    compare.compare,
    doctor.doctor,
    selftest.selftest,
    selftest.metal_selftest,
    demo.demo,
):
    npusim.add_command(_verb)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line; prints its answer or its error; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows a '?'
            stream.reconfigure(errors="replace")
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        with stopped_by_signals():
            answer = answer_of(npusim, list(arguments), as_json=as_json)
        code = answer if isinstance(answer, int) else show(answer, as_json=as_json)
        sys.stdout.flush()  # here, where it may fail, and not when Python ends
        return code
    except Stopped as stopped:
        print("Stopped.", file=sys.stderr)
        return 128 + stopped.signal
    except BrokenPipeError:  # the reader of our output went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except (Exception, KeyboardInterrupt) as error:
        return refuse(error, as_json=as_json, debug=debug)
