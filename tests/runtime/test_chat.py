"""Chats: templates are found, run in a sandbox, and only what a turn adds is run by the model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import npusim
from npusim.language_model import ChatTemplate
from npusim.language_model.tokenizer import Tokenizer
from tests.runtime import toy_language_model as toy
from tests.runtime.test_text import SPOKEN, save_tokenizer, table_of

pytest.importorskip("jinja2")
safetensors = pytest.importorskip("safetensors.numpy")

# The toy's vocabulary has no letters for roles: turns are told apart by a space.
TURNS = "{% for m in messages %}{{ m.content }}{{ ' ' }}{% endfor %}"
PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokens = [*Tokenizer(save_tokenizer(tmp_path)).encode(SPOKEN), toy.EOS]
    table = table_of(dict(itertools.pairwise(tokens)))
    safetensors.save_file({"table": table}, tmp_path / "model.safetensors")
    return tmp_path


def load(folder: Path) -> npusim.LanguageModel:
    return npusim.LanguageModel.load(toy.program(), folder)


def test_only_what_is_new_runs(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TURNS)
    chat = load(folder).new_chat()
    first = chat.say("h", max_new_tokens=2)
    list(first)
    assert first.stats.prompt_tokens == 2  # "h "
    assert first.tokens == chat.session.tokens[2:]
    second = chat.say("o", max_new_tokens=1)
    list(second)
    rendered = chat.session.model.tokenizer.encode(f"h {first.text} o ", begins=False)
    assert second.stats.prompt_tokens < len(rendered)
    assert chat.session.tokens == [*rendered, *second.tokens]
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]


def test_an_answer_left_early_is_the_turn_that_counts(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TURNS)
    chat = load(folder).new_chat()
    answer = chat.say("h", ignore_eos=True)
    next(answer)
    list(chat.say("o", max_new_tokens=1))
    assert chat.messages[1] == {"role": "assistant", "content": answer.text}


def test_a_turn_that_does_not_fit_does_not_count(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TURNS)
    chat = load(folder).new_chat()
    with pytest.raises(npusim.Error, match="context holds"):
        chat.say("h" * 10_000)
    assert chat.messages == []
    assert len(list(chat.say("h", max_new_tokens=2))) >= 1


@pytest.mark.parametrize("form", ["text", "list", "file"])
def test_where_a_template_lies(tmp_path: Path, form: str) -> None:
    config: dict[str, object] = {"bos_token": {"content": "<s>"}}
    if form == "text":
        config["chat_template"] = PLAIN
    elif form == "list":
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": PLAIN}]
        config["chat_template"] = named
    else:
        (tmp_path / "chat_template.jinja").write_text(PLAIN)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.beside(tmp_path / "tokenizer.json")
    assert template is not None
    assert template.render([{"role": "user", "content": "é"}]) == "<s>[user]é"


def test_no_template(folder: Path) -> None:
    assert load(folder).chat_template is None
    with pytest.raises(npusim.Error, match="no chat template"):
        load(folder).new_chat()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "no Jinja"),
        ("{{ raise_exception('turns must alternate') }}", "turns must alternate"),
        ("{{ messages[7].content }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),  # the sandbox
        ("{{ messages.append(1) }}", "refuses"),
        ("{% for i in range(10**9) %}x{% endfor %}", "refuses"),
    ],
)
def test_templates_that_fail_are_errors(source: str, words: str) -> None:
    with pytest.raises(npusim.Error, match=words):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("text", ["{", "[1]", '{"chat_template": 3}'])
def test_damaged_configurations_are_errors(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(npusim.Error, match="tokenizer_config"):
        ChatTemplate.beside(tmp_path)


def test_templates_say_what_transformers_says() -> None:
    """A template with what real ones use: loops with `break`, `tojson`, trimming of blocks."""
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "    {{- '<|' + m.role + '|>' + (m.content | trim) + '\\n' }}\n"
        "{%- endfor %}\n"
        "{{ {'a': 'ü<'} | tojson }}{% if add_generation_prompt %}<|assistant|>{% endif %}\n"
    )
    turns = [{"role": r, "content": f" {r} "} for r in ("system", "user", "assistant")]
    expected, _ = transformers.render_jinja_template(
        [turns], chat_template=source, add_generation_prompt=True
    )
    assert ChatTemplate(source).render(turns) == expected[0]
