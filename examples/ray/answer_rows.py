"""Answers the rows of a file: `python answer_rows.py qwen.npubin FOLDER prompts.jsonl answers`."""

from __future__ import annotations

import argparse
from pathlib import Path

import ray

from npusim.serve.ray import BatchGenerator


def main() -> None:
    """Parses the command line and writes a folder of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each actor")
    args = parser.parse_args()
    answered = ray.data.read_json(str(args.rows)).map_batches(
        BatchGenerator,
        fn_constructor_kwargs={
            "program": str(args.program.resolve()),
            "weights": str(args.weights.resolve()),
            "fields": {"max_tokens": 64},
            "engine": {"threads": args.threads},
        },
        batch_size=64,
        concurrency=args.actors,
        num_cpus=args.threads,
    )
    answered.write_json(str(args.answers))


if __name__ == "__main__":
    main()
