"""Which files a checkpoint of safetensors is made of."""

from __future__ import annotations

import json
from pathlib import Path

from npusim.errors import Error, ProgramFormatError


def safetensors_files(path: Path) -> list[Path]:
    """Returns the safetensors files of a checkpoint: a file, an index, or a folder of either."""
    if path.is_dir():
        names = ("model.safetensors.index.json", "model.safetensors")
        known = [path / name for name in names if (path / name).exists()]
        found = known[:1] or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise Error(f"Cannot read {path}: the folder has no or several .safetensors files.")
        path = found[0]
    if path.suffix != ".json":
        return [path]
    try:
        shards = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
        if all(Path(shard).name == shard for shard in shards):
            return [path.parent / shard for shard in shards]
    except OSError as error:
        raise Error(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ProgramFormatError(f"{path} is not an index of safetensors files.")
