"""`--precision` and `--quantize`: what a model is compiled in, and what `npusim verify` says of a
precision's cost."""

from __future__ import annotations

from typing import Any

import click

import npusim
from npusim.abi.precision import PRECISIONS
from npusim.cli.answer import Answer
from npusim.cli.factory import Made
from npusim.cli.progress import Report

quantize_option = click.option(
    "--quantize",
    metavar="SCHEME",
    help="Weights of linears: int8, fp8, int4-g32, int4-g64, int4-g128 (int4 also -asymmetric).",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="What a model of float32 is multiplied and stored in; mixed multiplies in bfloat16 and "
    "stores float32. [the target's]",
)


def precision_errors(
    made: Made,
    state: dict[str, Any],
    precision: str,
    target: str,
    threads: int | None,
    report: Report,
) -> Answer:
    """Measures what a precision costs each product of a model, each output, and the program."""
    from npusim.verify import tensor_leaves
    from npusim.verify_precision import TOLERANCES, verify_precision

    report("extracting")
    graph = npusim.extract_ir(made.model, made.args, made.kwargs or None, model_name=made.name)
    report("running the model")
    inputs = tensor_leaves(made.args, made.kwargs)
    found = verify_precision(graph, precision, state, inputs, target)
    report("compiling")
    program = npusim.compile(graph, target=target, precision=precision)
    report("running the program")
    _, of_program = npusim.verify_program(
        program,
        state_dict=state,
        original_model=made.model,
        test_inputs=made.args,
        test_kwargs=made.kwargs,
        tolerance=TOLERANCES[precision],
        device=program.target,
        threads=threads,
        edges=False,  # what is beyond 16 bits may be rounded there
    )
    data = {"precision": found.to_json(), "program": of_program.to_json()}
    return Answer(data, [*found.lines(), str(of_program)], ok=found.ok and of_program.ok)
