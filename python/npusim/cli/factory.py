"""MODULE:FACTORY: finding and calling the function that builds a user's model."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from npusim.errors import ExportError, foreign
from npusim.files import reads

FACTORY_HELP = (
    "MODULE is a module's name (package.models) or a file (models.py); FACTORY a function in it "
    "that takes no arguments and returns (model, example_args) or (model, example_args, kwargs)."
)


@dataclass(frozen=True)
class Made:
    """What a factory returned: the model and the arguments to call it with."""

    name: str
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    was_training: bool = False

    def remarks(self) -> list[str]:
        """Returns what a caller may not expect: a changed mode, arguments that are fixed."""
        told = []
        if self.was_training:
            told.append(
                "The model was in training mode; it is extracted as model.eval() leaves it."
            )
        fixed = [f"{name}={_brief(value)}" for name, value in self._fixed()]
        if fixed:
            told.append(f"Fixed in the graph, no inputs of it: {', '.join(fixed)}.")
        return told

    def _fixed(self) -> Iterator[tuple[str, Any]]:
        """Yields the arguments without a tensor in them, by their names in forward."""
        from torch.utils import _pytree as pytree

        try:
            bound = inspect.signature(self.model.forward).bind(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):
            bound = {f"argument {i}": value for i, value in enumerate(self.args)} | self.kwargs
        for name, value in bound.items():
            leaves = pytree.tree_leaves(value)
            if value is not None and not any(hasattr(leaf, "shape") for leaf in leaves):
                yield name, value


def make(spec: str) -> Made:
    """Imports MODULE, calls FACTORY and returns its model with example arguments.

    Raises:
        ExportError: torch is missing, there is no such module or function, its code raised, or
            it returned something else.
    """
    require_torch()
    module_name, colon, name = spec.rpartition(":")
    if not colon or not module_name or not name:
        raise ExportError(f"'{spec}' is not MODULE:FACTORY.", hint=FACTORY_HELP)
    factory = _find(import_module(module_name), name, module_name)
    return _unpack(_call(factory, spec), spec, name)


def require_torch() -> None:
    """Raises ExportError with the way out when PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ExportError("PyTorch is not installed.", hint="pip install 'npusim[torch]'")


def import_module(name: str) -> ModuleType:
    """Imports a module by name, or a `.py` file.

    Raises:
        ExportError: there is none, it needs one that is missing, or its code raised.
    """
    try:
        if name.endswith(".py"):
            return _import_file(Path(name))
        if not all(part.isidentifier() for part in name.split(".")):
            path = name.removesuffix(".py") + ".py"
            raise ExportError(
                f"'{name}' is neither a module's name nor a .py file.",
                hint=f"Write {path}:… if you mean that file."
                if Path(path).is_file()
                else "Write package.module, or the path of a file that ends in .py.",
            )
        if "" not in sys.path:
            sys.path.insert(0, "")  # a console script's path lacks the working directory
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise ExportError(
                f"There is no module '{name}'.",
                hint="Run from the folder that holds it, or give the path of its .py file.",
            ) from error
        raise ExportError(
            f"Importing {name} needs the module '{missing}', which is not installed."
        ) from error
    except ExportError:
        raise
    except (Exception, SystemExit) as error:
        raise ExportError(f"Importing {name} failed: {foreign(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ExportError(f"There is no file {path}.")
    reads(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ExportError(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # its own imports, as `python FILE` has them
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _find(module: ModuleType, name: str, module_name: str) -> Callable[[], Any]:
    factory = getattr(module, name, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    own = sorted(
        key
        for key, value in vars(module).items()
        if callable(value)
        and not key.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    )
    known = f"It defines: {', '.join(own)}." if own else "It defines no functions."
    raise ExportError(f"{module_name} has no function '{name}'.", hint=known)


def _call(factory: Callable[[], Any], spec: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ExportError(f"{spec} failed: {foreign(error)}") from error


def _unpack(made: Any, spec: str, name: str) -> Made:
    import torch

    if isinstance(made, (tuple, list)) and 2 <= len(made) <= 3:
        model, args, kwargs = made if len(made) == 3 else (*made, {})
        args = (args,) if isinstance(args, torch.Tensor) else args
        if (
            isinstance(model, torch.nn.Module)
            and isinstance(args, (tuple, list))
            and isinstance(kwargs, dict)
        ):
            training = model.training
            return Made(name, model.eval(), tuple(args), kwargs, training)
    raise ExportError(
        f"{spec} returned {_shape_of(made)}.",
        hint="It must return (model, example_args): a torch.nn.Module and a tuple of arguments.",
    )


def _shape_of(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return type(value).__name__


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
