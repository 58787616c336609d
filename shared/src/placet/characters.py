"""Decides how text from outside is shown to a person: what cannot be seen, or moves what can, is written out.

A reviewer must not read one thing and approve another. `visible` is for every screen; `findings` is the warning beside
it. Neither changes what is hashed or executed.

Covered, from the general categories of the standard library's Unicode data: controls, bidirectional controls and other
format characters, tags, line and paragraph separators, spaces other than U+0020, lone surrogates, private use,
unassigned; from the short tables below: variation selectors and letters that have no ink; marks that stand without a
letter or are piled up; words that mix letters of look-alike alphabets.

Not covered: a whole word in one foreign alphabet (Cyrillic U+0441 U+043E U+0441 U+043E, which reads as `coco`),
look-alikes within an alphabet (`rn` for `m`, `0` for `O`), and all else that needs the confusables table of UTS #39.
Emoji made of several characters come apart, since their joiners are written out. Characters newer than the
interpreter's Unicode data count as unassigned.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

_NO_INK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable by category and yet blank: fillers, the blank Braille pattern, joiners of marks, variation selectors."""
_WITH_INK = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Format characters that are seen: the marks that Arabic, Syriac and Kaithi put before numbers."""
_ESCAPE_LIKE = "\\u{"
_IDEOGRAPHIC_SPACE = "\u3000"
_MARKS_MAX = 4
"""More marks on one letter than any living language writes; a pile of them reaches into the lines above."""
_WORD = re.compile(r"[^\W_]+")
_ALPHABETS = frozenset(
    {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "FULLWIDTH", "MATHEMATICAL"}
)
"""Alphabets that share shapes, by the first word of their letters' names, which is all the standard library tells."""
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Hazard(StrEnum):
    """Why a character or a word deserves a warning."""

    CONTROL = "control"
    BIDIRECTIONAL = "bidirectional"
    INVISIBLE = "invisible"
    SEPARATOR = "separator"
    SPACE = "space"
    SURROGATE = "surrogate"
    PRIVATE_USE = "private_use"
    UNASSIGNED = "unassigned"
    STRAY_MARK = "stray_mark"
    ESCAPE_LIKE = "escape_like"
    MIXED_ALPHABETS = "mixed_alphabets"


class Finding(NamedTuple):
    """One warning: which character, where (in characters, from 0), and why."""

    hazard: Hazard
    position: int
    code_point: str
    """`U+202E`"""
    name: str
    """The character's name, or for mixed alphabets the word and whose letters it mixes."""


def visible(text: str, *, keep_lines: bool = False) -> str:
    """The text with every hazardous character written as `\\u{202E}`; readable text stays as it is.

    One to one: where the text itself spells `\\u{`, its backslash is written out too. With `keep_lines` line feeds and
    tabs stay, for text that is shown as a block. Mixed alphabets are readable, hence left alone: see `findings`.
    """
    if _is_harmless(text):
        return text
    shown: list[str] = []
    for position, character in enumerate(text):
        kept = keep_lines and character in "\n\t"
        shown.append(character if kept or _hazard(text, position) is None else f"\\u{{{ord(character):X}}}")
    return "".join(shown)


def findings(text: str) -> list[Finding]:
    """Every hazard in the text, in order of position. Empty for text that may be read as it stands."""
    found = list(_mixed_words(text))
    if not _is_harmless(text):
        for position, character in enumerate(text):
            hazard = _hazard(text, position)
            if hazard is not None:
                found.append(Finding(hazard, position, _code_point(character), _name(character)))
    return sorted(found, key=lambda finding: finding.position)


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _name(character: str) -> str:
    return unicodedata.name(character, _UNNAMED.get(unicodedata.category(character), "without a name"))


_UNNAMED = {"Cc": "control character", "Cs": "half of a surrogate pair", "Co": "private use", "Cn": "unassigned"}


def _is_harmless(text: str) -> bool:
    """Whether no character needs a second look: the fast answer for nearly all text."""
    if not text.isprintable() or _ESCAPE_LIKE in text:
        return False
    return text.isascii() or not (_NO_INK.search(text) or any(unicodedata.category(c)[0] == "M" for c in text))


def _hazard(text: str, position: int) -> Hazard | None:
    character = text[position]
    if not character.isprintable():
        return _unprintable(text, position)
    if character == "\\":
        return Hazard.ESCAPE_LIKE if text.startswith(_ESCAPE_LIKE, position) else None
    if character.isascii():
        return None
    if _NO_INK.match(character):
        return Hazard.INVISIBLE
    if unicodedata.category(character)[0] == "M":
        return Hazard.STRAY_MARK if _is_stray(text, position) else None
    return None


def _unprintable(text: str, position: int) -> Hazard | None:
    character = text[position]
    match unicodedata.category(character):
        case "Cc":
            return Hazard.CONTROL
        case "Cf":
            if character in _WITH_INK:
                return None
            return Hazard.BIDIRECTIONAL if character in _BIDI else Hazard.INVISIBLE
        case "Zl" | "Zp":
            return Hazard.SEPARATOR
        case "Zs":
            return None if character == _IDEOGRAPHIC_SPACE and _between_wide(text, position) else Hazard.SPACE
        case "Cs":
            return Hazard.SURROGATE
        case "Co":
            return Hazard.PRIVATE_USE
        case _:
            return Hazard.UNASSIGNED


def _between_wide(text: str, position: int) -> bool:
    """Whether a wide character stands beside: there the ideographic space is ordinary writing."""
    around = text[max(position - 1, 0) : position] + text[position + 1 : position + 2]
    return any(c != _IDEOGRAPHIC_SPACE and unicodedata.east_asian_width(c) in "WF" for c in around)


def _is_stray(text: str, position: int) -> bool:
    """Whether a mark has nothing to stand on, or stands on a pile."""
    start = position
    while start > 0 and position - start <= _MARKS_MAX and unicodedata.category(text[start - 1])[0] == "M":
        start -= 1
    if start == 0 or position - start >= _MARKS_MAX:
        return True
    base = text[start - 1]
    return not (unicodedata.category(base)[0] in "LNS" or base in _WITH_INK)


def _mixed_words(text: str) -> Iterator[Finding]:
    """A finding for each word that mixes look-alike alphabets, at its first letter of the rarer one."""
    if text.isascii():
        return
    for match in _WORD.finditer(text):
        word = match.group()
        if word.isascii():
            continue
        alphabets = [_alphabet(character) for character in word]
        known = sorted({name for name in alphabets if name}, key=lambda name: (-alphabets.count(name), name))
        if len(known) > 1:
            at = next(at for at, alphabet in enumerate(alphabets) if alphabet and alphabet != known[0])
            mixed = " and ".join(alphabet.capitalize() for alphabet in known)
            yield Finding(
                Hazard.MIXED_ALPHABETS, match.start() + at, _code_point(word[at]), f"{visible(word)}: {mixed} letters"
            )


def _alphabet(character: str) -> str | None:
    if not character.isalpha():
        return None
    first = unicodedata.name(character, "").split(" ", 1)[0]
    return first if first in _ALPHABETS else None
