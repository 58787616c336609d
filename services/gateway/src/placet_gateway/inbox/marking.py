"""Decides how text that somebody else wrote stands on a page: as text, with everything in it that cannot be seen.

A character that has no ink or moves others is shown as its code point; a word of look-alike letters is underlined and
says whose they are; long runs of blanks are told by their number. The pieces come out in order, each with its kind, and
are put into the page as text nodes, never as markup.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from placet.characters import Hazard, findings
from placet.sentences import BLANKS_MAX

_BLANKS = re.compile(rf"\n{{4,}}|[ \t\n\r]{{{BLANKS_MAX + 1},}}")
_LOOK_ALIKE = frozenset({"GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "FULLWIDTH", "MATHEMATICAL"})
"""Alphabets with letters that look Latin, by the first word of their letters' names."""
_WORD = re.compile(r"[^\W_]+")


class Piece(NamedTuple):
    """A stretch of text of one kind: `plain`, `hidden`, `mixed` or `blank`."""

    kind: str
    text: str
    title: str = ""


def marked(text: str) -> list[Piece]:
    """The text in pieces."""
    return [piece for piece in _pieces(text) if piece.text]


def _pieces(text: str) -> Iterator[Piece]:
    at = 0
    for start, end, piece in sorted(_marks(text), key=lambda mark: (mark[0], -mark[1])):
        if start < at:
            continue  # within what has just been told
        yield Piece("plain", text[at:start])
        yield piece
        at = end
    yield Piece("plain", text[at:])


def marked_change(text: str, around: str) -> list[Piece]:
    """A changed stretch in pieces: also each letter of an alphabet that shares shapes with the Latin one of the text
    around it, since alone it may read as the very letter that it has replaced."""
    pieces = marked(text)
    if not any(character.isascii() and character.isalpha() for character in text + around):
        return pieces
    return [part for piece in pieces for part in (_letters(piece) if piece.kind == "plain" else [piece])]


def _letters(piece: Piece) -> Iterator[Piece]:
    plain = ""
    for character in piece.text:
        name = unicodedata.name(character, "")
        if character.isascii() or name.partition(" ")[0] not in _LOOK_ALIKE:
            plain += character
            continue
        if plain:
            yield Piece("plain", plain)
        plain = ""
        yield Piece("mixed", character, f"U+{ord(character):04X} {name}")
        yield Piece("hidden", f"U+{ord(character):04X}", name)
    if plain:
        yield Piece("plain", plain)


def _marks(text: str) -> Iterator[tuple[int, int, Piece]]:
    hidden: list[int] = []
    words: list[tuple[int, str]] = []
    for found in findings(text):
        at = found.position
        if found.hazard is Hazard.MIXED_ALPHABETS:
            words.append((at, found.name))
        elif found.hazard is not Hazard.ESCAPE_LIKE and text[at] not in "\n\t":
            hidden.append(at)
            yield at, at + 1, Piece("hidden", found.code_point, found.name)
    for at, name in words:
        start, end = _word_around(text, at)
        if not any(start <= place < end for place in hidden):  # else that is what has to be seen
            yield start, end, Piece("mixed", text[start:end], name)
    for blank in _BLANKS.finditer(text):
        lines = set(blank.group()) == {"\n"}
        told = f"{len(blank.group()) - 1:,} blank lines" if lines else f"{len(blank.group()):,} blanks"
        yield blank.start(), blank.end(), Piece("blank", f"⟨{told}⟩", "left out here; it is in what is hashed")


def _word_around(text: str, at: int) -> tuple[int, int]:
    for match in _WORD.finditer(text):
        if match.start() <= at < match.end():
            return match.span()
    return at, at + 1
