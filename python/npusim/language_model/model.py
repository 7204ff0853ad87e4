"""LanguageModel: a compiled program, its weights and its tokenizer, ready to generate."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.errors import Error
from npusim.language_model.chat import Chat, ChatTemplate
from npusim.language_model.generation import TextGeneration, TokenGeneration
from npusim.language_model.session import LanguageSession, Prompt
from npusim.language_model.tokenizer import FILE, Tokenizer
from npusim.runtime.checkpoint import Checkpoint
from npusim.runtime.device import Device
from npusim.runtime.gguf import SUFFIX as GGUF
from npusim.runtime.native import ProgramLike, native_device, native_program
from npusim.runtime.weights import Progress, WeightSource, load_weights

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from npusim.language_model.generation import GenerateOptions, TokenOptions

_GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    Attributes:
        log_probabilities: natural, of each token but the first, given those before it.
    """

    log_probabilities: NDArray[np.float64]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log-probability; NaN for a single token."""
        values = self.log_probabilities
        return float(np.exp(-values.mean())) if values.size else float("nan")


class LanguageModel:
    """A language model on a device. Immutable: conversations are sessions of their own.

    `LanguageModel.load` makes one.

    Attributes:
        native: what the runtime holds.
        device: where it runs.
        eos_token_ids: tokens that end a text: the program's own, and those of a
            `generation_config.json` beside the weights or the tokenizer.
    """

    def __init__(
        self,
        native: _runtime.LanguageModel,
        device: _runtime.Device,
        tokenizer: Path | Tokenizer | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.native = native
        self.device = device
        self.eos_token_ids = tuple(sorted({*native.eos_token_ids, *eos_token_ids}))
        self._tokenizer = tokenizer
        self._parts: tuple[_runtime.Program, _runtime.Weights] | None = None

    @classmethod
    def load(
        cls,
        program: ProgramLike,
        weights: WeightSource | _runtime.Weights | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str | _runtime.Device = "cpu",
        threads: int = 0,
        *,
        copy: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Loads a program, its weights and, when text is first asked for, its tokenizer.

        Args:
            program: what `npusim.compile` made of `npusim.extract_llm`, or the path of it.
            weights: as `load_weights` takes them; most often the model's folder.
            tokenizer: a `tokenizer.json`, its folder, or a `.gguf` file with its vocabulary; by
                default where the weights are.
            device: a device or its name.
            threads: workers of the device, when it is given by name; 0: one a physical core.
            copy: as `load_weights` has it.
            progress: as `load_weights` has it.

        Raises:
            ShapeError: the program is no language model.
            WeightMismatchError: tensors are missing or do not fit; all are listed at once.
            ProgramFormatError, DeviceError, Error: as `load_weights` and `Device`.
        """
        handle = native_program(program)
        if isinstance(device, str):
            device = Device(device, threads=threads or None)
        native_device(device)
        origin, folders = weights, [_folder(path) for path in (tokenizer, weights)]
        if not isinstance(weights, _runtime.Weights):
            weights = load_weights(weights, handle, device, copy=copy, progress=progress)
        found = tokenizer_of(tokenizer, origin)
        return cls._of(handle, device, weights, found, _read_eos(folders))

    @classmethod
    def _of(
        cls,
        program: _runtime.Program,
        device: _runtime.Device,
        weights: _runtime.Weights,
        tokenizer: Path | Tokenizer | None,
        eos_token_ids: Sequence[int],
    ) -> Self:
        made = cls(
            _runtime.LanguageModel(program, device, weights), device, tokenizer, eos_token_ids
        )
        made._parts = (program, weights)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # By what it is made of; a tokenizer by its file.
        if self._parts is None:
            raise Error("This model cannot be pickled.", hint="Make it with LanguageModel.load.")
        path = self.tokenizer_path
        where = None if path is None else path.absolute()
        program, weights = self._parts
        return type(self)._of, (program, self.device, weights, where, self.eos_token_ids)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it changes

    @property
    def max_context(self) -> int:
        """How many tokens a session can hold."""
        return self.native.max_context

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.native.vocab_size

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer was given or found."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            Error: there is none, it is damaged, or it knows more tokens than the model.
        """
        if self._tokenizer is None:
            raise Error(
                "This language model has no tokenizer.",
                hint=f"Give the folder of a {FILE}, or work with token ids.",
            )
        if not isinstance(self._tokenizer, Tokenizer):
            self._tokenizer = fitting_tokenizer(self._tokenizer, self.vocab_size)
        return self._tokenizer

    @property
    def tokenizer_path(self) -> Path | None:
        """Where the tokenizer is; None where none was given or found."""
        known = self._tokenizer
        return known.path if isinstance(known, Tokenizer) else known

    def new_session(self) -> LanguageSession:
        """Returns a session without tokens."""
        return LanguageSession(self)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template beside the tokenizer; None where there is none.

        Raises:
            Error: there is no tokenizer, or as `ChatTemplate.beside`.
        """
        return ChatTemplate.beside(self.tokenizer.path)

    def new_chat(self, system: str | None = None) -> Chat:
        """Returns a conversation in turns.

        Args:
            system: instructions that stand before the first turn.

        Raises:
            Error: the model has no chat template, or no tokenizer.
        """
        template = self.chat_template
        if template is None:
            raise Error(
                "This language model has no chat template.",
                hint="Continue texts with `generate`: it was not trained to answer in turns.",
            )
        return Chat(self.new_session(), template, system)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> TextGeneration:
        """Continues a prompt in a session of its own: `LanguageSession.generate`."""
        return self.new_session().generate(prompt, **options)

    def generate_tokens(self, prompt: Prompt, **options: Unpack[TokenOptions]) -> TokenGeneration:
        """Continues a prompt in a session of its own: `LanguageSession.generate_tokens`."""
        return self.new_session().generate_tokens(prompt, **options)

    def score(self, text: Prompt) -> Score:
        """Returns the log-probability of each token of a text, given those before it.

        Decodes the tokens one by one: that is how an answer is made, and what quantization must
        preserve.

        Raises:
            Error: more tokens than the context holds, or one outside the vocabulary.
        """
        session = self.new_session()
        return Score(np.array(session._native.score(session._ids(text)), np.float64))

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises Error for the first token outside the vocabulary."""
        check_tokens(tokens, self.vocab_size)

    def __repr__(self) -> str:
        return f"LanguageModel({self.vocab_size} tokens, context {self.max_context}, {self.device})"


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raises Error for the first token that a vocabulary of that size does not have."""
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise Error(
                f"Token {token} is outside the vocabulary: tokens are 0 … {vocab_size - 1}."
            )


def fitting_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a model with that many tokens; Error where it knows more."""
    found = Tokenizer(path)
    if found.size > vocab_size:
        raise Error(
            f"{found.path} has {found.size} tokens, the model {vocab_size}.",
            hint="Give the tokenizer of this very model.",
        )
    return found


def _folder(source: object) -> Path | None:
    """Returns the folder of a path, or None for what is none."""
    source = source.source if isinstance(source, Checkpoint) else source
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source)
    return path if path.is_dir() else path.parent


def _gguf_of(source: object) -> Path | None:
    """Returns the GGUF file that weights come from, which has a vocabulary, too."""
    source = source.source if isinstance(source, Checkpoint) else source
    found = isinstance(source, (str, os.PathLike)) and Path(source).suffix == GGUF
    return Path(source) if isinstance(source, (str, os.PathLike)) and found else None


def tokenizer_of(given: str | os.PathLike[str] | None, weights: object) -> Path | None:
    """Returns where a model's tokenizer is: what was given, else what the weights' own file or
    folder has; None where there is none."""
    if given is not None:
        return Path(given)
    if (single := _gguf_of(weights)) is not None:
        return single
    beside = _folder(weights)
    found = beside is not None and (beside / FILE).is_file()
    return beside / FILE if beside is not None and found else None


def _read_eos(folders: Sequence[Path | None]) -> list[int]:
    """Returns the end-of-text tokens of the first `generation_config.json` in the folders."""
    for folder in folders:
        path = folder / _GENERATION_CONFIG if folder is not None else None
        if path is None or not path.is_file():
            continue
        try:
            config = json.loads(path.read_bytes())
            value = config.get("eos_token_id")
        except (ValueError, AttributeError, RecursionError) as error:
            raise Error(f"{path} is no JSON object: {error}.") from error
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) for token in ids):
            raise Error(f"{path}: eos_token_id is {value!r}, it must be a token or a list of them.")
        return ids
    return []
