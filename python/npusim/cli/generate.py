"""`npusim generate`: a language model continues a prompt, and the text appears as it is made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import npusim
from npusim.cli.answer import INTERRUPTED, Answer, Verb, amount, duration, printable
from npusim.cli.artifact import open_program
from npusim.cli.language import LanguageOptions, is_language_model
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error
from npusim.profile.memory import peak_rss

if TYPE_CHECKING:
    from npusim.language_model import Chat, LanguageSession, Stats, TextGeneration


@click.command(cls=Verb)
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("--prompt", help="Text to continue; - reads it from stdin.")
@click.option("--chat", is_flag=True, help="The prompt is a turn: use the model's chat template.")
@click.option("--system", metavar="TEXT", help="With --chat: instructions before the first turn.")
@click.option(
    "-i", "--interactive", is_flag=True, help="Read one prompt a line until the end of the input."
)
@click.option("--token-ids", metavar="1,2,3", help="Tokens to continue; needs no tokenizer.")
@weights_options(help="Default: MODEL.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Default: beside the weights.")
@click.option("--max-new-tokens", type=int, help="Default: as many as the context holds.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: greedy.")
@click.option("--top-k", type=int, default=0, show_default=True, help="0: all tokens.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--min-p", type=float, default=0.0, show_default=True)
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, help="Default: another one each time.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this; repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's own end of text.")
@click.option("--max-context", type=click.IntRange(min=1), help="Default: 4096 or less.")
@click.option("--prefill-chunk", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--save", type=click.Path(path_type=Path), help="Keep the program made of MODEL.")
@running_options
def generate(
    model: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    interactive: bool,
    token_ids: str | None,
    weights: Weights,
    tokenizer: Path | None,
    max_new_tokens: int | None,
    stop: tuple[str, ...],
    ignore_eos: bool,
    max_context: int | None,
    prefill_chunk: int,
    save: Path | None,
    running: Running,
    **sampling: Any,
) -> Answer:
    """Continue a prompt with a language model.

    MODEL is a folder of Hugging Face transformers (config.json, safetensors, tokenizer.json) or a
    .gguf file; it is extracted and compiled first. A .npubin file skips that, and needs --weights.

    With --interactive, every line of the input is a prompt that continues the conversation, in the
    model's chat template where it has one; Ctrl-C ends an answer, the end of input (Ctrl-D) all.
    """
    start: str | list[int] | None = _prompt(prompt, token_ids, interactive=interactive)
    if chat and isinstance(start, list):
        raise Error("--chat puts text into a template; --token-ids are no text.")
    with progress("Loading") as report:
        is_source = is_language_model(model)
        if is_source:
            report("extracting and compiling")
            extraction = LanguageOptions(max_context, prefill_chunk)
            program = npusim.compile(extraction.extract(model, report), progress=report)
            if save is not None:
                program.save(save)
        else:
            program = open_program(model)
        source = weights or (model if is_source else None)
        if source is None and program.weights:
            raise Error(f"{model} needs weights.", hint="Give --weights, the model's folder.")
        on, copy = running.open(program.target), running.copy_weights
        loaded = npusim.LanguageModel.load(
            program, source, tokenizer, on, copy=copy, progress=report
        )
    options = {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, **sampling}
    in_turns = chat or system is not None or (interactive and _has_template(loaded))
    if interactive:
        return converse(
            loaded.new_chat(system) if in_turns else loaded.new_session(), stop, options
        )
    assert start is not None
    if in_turns:
        outcome = _tell(loaded.new_chat(system).say(str(start), stop=stop, **options))
    else:
        outcome = _run(loaded.new_session(), start, stop, options, in_text=loaded.has_tokenizer)
    print(file=sys.stderr)
    click.echo(_summary(outcome.stats), err=True)
    data = {
        "text": outcome.text,
        "tokens": outcome.tokens,
        "finish_reason": outcome.reason,
        "stats": {**asdict(outcome.stats), "tokens_per_second": outcome.stats.tokens_per_second},
        "peak_rss_bytes": peak_rss(),
    }
    if outcome.reason == "interrupted":
        return Answer(data, [], ok=False, code=INTERRUPTED)
    return Answer(data, [])


def _has_template(model: npusim.LanguageModel) -> bool:
    return model.has_tokenizer and model.chat_template is not None


def _prompt(
    text: str | None, token_ids: str | None, *, interactive: bool
) -> str | list[int] | None:
    if interactive:
        if text is not None or token_ids is not None:
            raise Error("--interactive reads prompts from the input; leave --prompt out.")
        return None
    if (text is None) == (token_ids is None):
        raise Error("Give either --prompt or --token-ids.")
    if token_ids is None:
        return sys.stdin.read() if text == "-" else text or ""
    try:
        return [int(token) for token in token_ids.split(",")]
    except ValueError:
        raise Error(
            f"--token-ids is {token_ids!r}.", hint="Give numbers separated by commas."
        ) from None


@dataclass
class _Outcome:
    text: str | None
    tokens: Sequence[int]
    reason: str | None
    stats: Stats


def _run(
    session: LanguageSession,
    prompt: str | list[int],
    stops: tuple[str, ...],
    options: dict[str, Any],
    *,
    in_text: bool,
) -> _Outcome:
    """Generates, printing what appears; Ctrl-C ends it there."""
    if in_text or stops or isinstance(prompt, str):
        return _tell(session.generate(prompt, stop=stops, **options))
    tokens = session.generate_tokens(prompt, **options)
    reason = _print_all(tokens, separator=" ")
    return _Outcome(None, tokens.tokens, reason or tokens.finish_reason, tokens.stats)


def _tell(made: TextGeneration) -> _Outcome:
    reason = _print_all(made)
    _put(made.flush())
    return _Outcome(made.text, made.tokens, reason or made.finish_reason, made.stats)


def converse(
    conversation: Chat | LanguageSession, stops: tuple[str, ...], options: dict[str, Any]
) -> Answer:
    """Answers one line of the input after the other, until its end.

    An error of one turn, such as a full context, is said and ends that turn alone.
    """
    from npusim.language_model import LanguageSession

    asked = sys.stdin.isatty()
    turns, tokens = [], 0
    for line in iter(lambda: _line(asked), None):
        if not line.strip():
            continue
        try:
            if isinstance(conversation, LanguageSession):
                outcome = _tell(conversation.generate(line, stop=stops, **options))
            else:
                outcome = _tell(conversation.say(line, stop=stops, **options))
        except Error as error:
            click.echo(f"error: {error}", err=True)
            continue
        print(flush=True)
        click.echo(_summary(outcome.stats), err=True)
        turns.append({"prompt": line, "text": outcome.text, "finish_reason": outcome.reason})
        tokens += len(outcome.tokens)
    return Answer({"turns": turns, "tokens": tokens}, [])


def _line(asked: bool) -> str | None:
    """Returns the next line of the input without its end, or None where it ends."""
    try:
        return input("> ") if asked else input()
    except (EOFError, KeyboardInterrupt):
        return None


def _print_all(pieces: Any, separator: str = "") -> str | None:
    try:
        for piece in pieces:
            _put(f"{piece}{separator}")
    except KeyboardInterrupt:
        return "interrupted"
    return None


def _put(text: str) -> None:
    print(printable(text), end="", flush=True)


def _summary(stats: Stats) -> str:
    parts = [
        f"{stats.new_tokens} tokens after {stats.prompt_tokens}",
        f"first after {duration(stats.time_to_first_token)}",
    ]
    if stats.tokens_per_second:
        parts.append(f"then {stats.tokens_per_second:.1f} tokens/s")
    return ", ".join([*parts, f"peak memory {amount(peak_rss())}"])
