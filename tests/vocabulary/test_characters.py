"""How text from outside is shown: what cannot be seen, or moves what can, is written out."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.characters import Finding, Hazard, findings, visible

WITH_INK = " \u3000\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Spaces that may stay, and the format characters that are seen: marks before numbers."""
ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=40) | st.text(
    st.sampled_from("ab \\u{}\u202e\u200b\ufeff\u0301\u3000明é\U0001f600\ufe0f\ud800\U000e0041"), max_size=20
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://safe.example.test/\u202e\u2066moc.rehto\u2069/data", "http://safe.example.test/\\u{202E}\\u{2066}moc.rehto\\u{2069}/data"),
        ("/tmp/\u200bimportant", "/tmp/\\u{200B}important"),
        ("a\u2028b", "a\\u{2028}b"),
        ("\x1b]52;c;eA==\x07\x1b[2K\r", "\\u{1B}]52;c;eA==\\u{7}\\u{1B}[2K\\u{D}"),
        ("a\x00b\x7f\x9b", "a\\u{0}b\\u{7F}\\u{9B}"),
        ("\ufeffa\u00adb\u2060c\u180ed", "\\u{FEFF}a\\u{AD}b\\u{2060}c\\u{180E}d"),
        ("ok\U000e0068\U000e0069", "ok\\u{E0068}\\u{E0069}"),
        ("a\ufe0f\U000e0100\u180b", "a\\u{FE0F}\\u{E0100}\\u{180B}"),
        ("a\u00a0b\u2003c\u205fd", "a\\u{A0}b\\u{2003}c\\u{205F}d"),
        ("\u3164\uffa0\u115f\u2800\u034f", "\\u{3164}\\u{FFA0}\\u{115F}\\u{2800}\\u{34F}"),
        ("\ue000\U0010fffd\ufffe\u0378", "\\u{E000}\\u{10FFFD}\\u{FFFE}\\u{378}"),
        ("\ud83d", "\\u{D83D}"),
    ],
)  # fmt: skip
def test_what_hides_or_moves_text_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert [finding.position for finding in findings(text)] == [at for at, c in enumerate(text) if visible(c) != c]


@pytest.mark.parametrize(
    "text",
    [
        "c1@example.test",
        "請求書の確認",
        "明日の午後三時に送ります。 😀 café",
        "明日は\u3000晴れ",
        "\u3000段落の初め",
        "cafe\u0301",
        "한국어",
        "שלום עולם",
        "مرحبا \u0661\u0662 \u0600\u0661",
        "हिन्दी में",
        "ภาษาไทยที่นี่",
        "Việt Nam, tiê\u0301ng",
        "Привет мир",
        "Ωμέγα",
        "5 µm, 20 °C, ½ € — “quoted” …",
        "C:\\users\\new {u}",
        "",
    ],
)
def test_readable_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert findings(text) == []


def test_an_escape_spelt_in_the_text_cannot_pass_for_a_real_one() -> None:
    assert visible("\\u{202E}") == "\\u{5C}u{202E}" != visible("\u202e") == "\\u{202E}"
    assert [finding.hazard for finding in findings("a\\u{202E}")] == [Hazard.ESCAPE_LIKE]


@given(ANY_TEXT, ANY_TEXT)
def test_different_texts_are_shown_differently(first: str, second: str) -> None:
    assert (visible(first) == visible(second)) == (first == second)


@given(ANY_TEXT)
def test_what_is_shown_has_nothing_left_to_hide(text: str) -> None:
    shown = visible(text)
    left = {unicodedata.category(c) for c in shown if c not in WITH_INK}
    assert left.isdisjoint({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
    assert (shown == text) == (not [f for f in findings(text) if f.hazard != Hazard.MIXED_ALPHABETS])
    assert shown.encode().decode() == shown


def test_lines_may_be_kept_for_text_shown_as_a_block() -> None:
    assert visible("a\n\tb\r\x0b") == "a\\u{A}\\u{9}b\\u{D}\\u{B}"
    assert visible("a\n\tb\r\x0b", keep_lines=True) == "a\n\tb\\u{D}\\u{B}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0301x", "\\u{301}x"),
        ('"\u0338', '"\\u{338}'),
        ("a \u0301", "a \\u{301}"),
        ("a" + "\u0301" * 6, "a" + "\u0301" * 4 + "\\u{301}\\u{301}"),
        ("rm\u3000-rf", "rm\\u{3000}-rf"),
    ],
)
def test_marks_and_spaces_out_of_place_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_finding_names_character_place_and_reason() -> None:
    assert findings("a\u202eb\u200b\x1b\ue000") == [
        Finding(Hazard.BIDIRECTIONAL, 1, "U+202E", "RIGHT-TO-LEFT OVERRIDE"),
        Finding(Hazard.INVISIBLE, 3, "U+200B", "ZERO WIDTH SPACE"),
        Finding(Hazard.CONTROL, 4, "U+001B", "control character"),
        Finding(Hazard.PRIVATE_USE, 5, "U+E000", "private use"),
    ]


@pytest.mark.parametrize(
    ("text", "position", "code_point", "alphabets"),
    [
        ("see p\u0430ypal.com", 5, "U+0430", "Latin and Cyrillic"),
        ("\u0440\u0430\u0443pal", 3, "U+0070", "Cyrillic and Latin"),
        ("g\u03bfogle", 1, "U+03BF", "Latin and Greek"),
        ("\uff50aypal", 0, "U+FF50", "Latin and Fullwidth"),
        ("\U0001d429aypal", 0, "U+1D429", "Latin and Mathematical"),
        ("user_\u0430dmin", 5, "U+0430", "Latin and Cyrillic"),
    ],
)
def test_a_word_of_mixed_alphabets_is_found_and_stays_readable(
    text: str, position: int, code_point: str, alphabets: str
) -> None:
    (finding,) = findings(text)
    assert finding[:3] == (Hazard.MIXED_ALPHABETS, position, code_point)
    assert alphabets in finding.name
    assert visible(text) == text


def test_words_of_different_alphabets_side_by_side_are_no_finding() -> None:
    assert findings("Москва is Moscow, ελληνικά is Greek, 東京tower, 10km") == []


def test_a_whole_word_in_a_foreign_alphabet_is_not_found_as_the_module_admits() -> None:
    assert findings("\u0441\u043e\u0441\u043e") == []


def test_long_text_is_judged_in_linear_time() -> None:
    pile = "e" + "\u0301" * 50_000 + "\u202e" * 50_000
    assert len(findings(pile)) == len(pile) - 5
