"""Serves a language model by replicas: `python serve_model.py qwen.npubin path/to/Qwen2.5-1.5B`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ray import serve

from npusim.serve.ray import deployment


def main() -> None:
    """Parses the command line and serves until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    args = parser.parse_args()
    application = deployment(
        str(args.program.resolve()),
        str(args.weights.resolve()),
        name=args.program.stem,
        engine={"threads": args.threads},
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": args.threads},
    )
    serve.run(application, name="npusim", route_prefix="/", blocking=True)


if __name__ == "__main__":
    main()
