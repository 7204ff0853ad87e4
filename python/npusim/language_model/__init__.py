"""Language models in Python: loading one, generating text, and what a session remembers.

Owns everything about text: tokenizers, pieces of valid text out of single tokens, stop strings.
Tokens, caches and sampling are the C++ runtime's.
"""

from npusim.language_model.chat import Chat, ChatTemplate
from npusim.language_model.generation import Stats, TextGeneration, TokenGeneration
from npusim.language_model.model import LanguageModel, Score
from npusim.language_model.session import LanguageSession
from npusim.language_model.tokenizer import Tokenizer

__all__ = [
    "Chat",
    "ChatTemplate",
    "LanguageModel",
    "LanguageSession",
    "Score",
    "Stats",
    "TextGeneration",
    "TokenGeneration",
    "Tokenizer",
]
