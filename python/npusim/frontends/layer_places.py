"""Stand-ins for numbers that count the layers of a list.

Owns what notes whether a layer uses such a number for more than to choose its layer of a cache.
"""

from __future__ import annotations

from typing import Any


class Place:
    """Stands for an integer that counts layers, and notes what it is used for."""

    def __init__(self, path: str, value: int) -> None:
        self.path, self.value, self.used = path, value, False

    @property  # type: ignore[misc]  # what isinstance asks
    def __class__(self) -> Any:
        return int


def _noting(name: str) -> Any:
    def use(self: Any, *others: Any) -> Any:
        vars(self)["used"] = True
        given = [x.value if type(x) is Place else x for x in others]
        return getattr(vars(self)["value"], name)(*given)

    return use


for _name in dir(int):
    if _name not in dir(object) and _name.startswith("__"):
        setattr(Place, _name, _noting(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__"):
    setattr(Place, _name, _noting(_name))
for _name in ("__str__", "__format__"):
    setattr(Place, _name, _noting(_name))


def _place_attribute(self: Any, name: str) -> Any:
    vars(self)["used"] = True
    return getattr(vars(self)["value"], name)


setattr(Place, "__getattr__", _place_attribute)  # noqa: B010


class Slots(list[Any]):
    """The layers of a cache, which a place chooses from."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers)
        self.chosen: set[str] = set()

    def __getitem__(self, index: Any) -> Any:
        if type(index) is Place:
            self.chosen.add(index.path)
            index = index.value
        return super().__getitem__(index)
