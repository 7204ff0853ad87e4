"""Reading the fields of a JSON object that anybody may have sent; each refusal names its field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from npusim.errors import Error


class RequestError(Error):
    """A request that is refused, as HTTP and OpenAI's clients know refusals.

    Attributes:
        status: the HTTP status.
        type: "invalid_request_error", "rate_limit_error", "server_error" and so on.
        param: the field that is wrong, or None.
        code: a word for programs, or None.
        retry_after: seconds after which the request may come again, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """What the client gets."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}


def parse_object(content: bytes) -> dict[str, Any]:
    """Returns a JSON object; RequestError for anything else, `NaN` and lone surrogates included."""
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class Fields:
    """The fields of an object, read by what they must be.

    A field that is null counts as absent.

    Args:
        values: the object.
        path: what names of its fields begin with in messages.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values, self._path = values, path

    def raw(self, name: str) -> Any:
        """Returns a field as it is; None where it is absent."""
        return self._values.get(name)

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raises RequestError that says what a field must be."""
        shown = json.dumps(self.raw(name), ensure_ascii=False)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        where = self._path + name
        raise RequestError(f"{where} is {shown}, it must be {expected}.", param=where)

    def boolean(self, name: str, default: bool = False) -> bool:
        """Returns true or false."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "true or false")
        return default if value is None else value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Returns an integer, low … high; None where it is absent."""
        value = self.raw(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Returns a number, low … high."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(name, f"a number from {low:g} to {high:g}")
        if not low <= value <= high or math.isnan(value):
            self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        """Returns a string; None where it is absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "a string")
        return value

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """Returns a string, or a list of them, as a tuple; none of them is empty."""
        value = self.raw(name)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list) or len(values) > most:
            self.refuse(name, f"a string, or a list of {most} strings at most")
        if not all(isinstance(text, str) and 0 < len(text) <= longest for text in values):
            self.refuse(name, f"made of strings of 1 to {longest} characters")
        return tuple(values)

    def tokens(self, name: str, most: int) -> tuple[int, ...]:
        """Returns a list of token ids as a tuple."""
        value = self.raw(name)
        values = [] if value is None else value
        if not isinstance(values, list) or len(values) > most or not are_tokens(values):
            self.refuse(name, f"a list of {most} token ids at most")
        return tuple(values)

    def object(self, name: str) -> Fields | None:
        """Returns the fields of an object; None where it is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(value, f"{self._path}{name}.")


def are_tokens(values: Sequence[Any]) -> bool:
    """Tells whether all values can be token ids."""
    return all(type(value) is int and 0 <= value < 2**31 for value in values)
