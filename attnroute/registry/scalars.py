"""What an unquoted YAML scalar means here: text, whole number, plain decimal, `true`, `false` or nothing.

Everything that YAML 1.1 and 1.2 readers understand differently is refused, with the spelling that was probably meant.
"""

from __future__ import annotations

import re
from functools import lru_cache

Plain = str | int | float | bool | None

_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+\Z")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_BOOLEANS = dict.fromkeys(("yes", "on", "y", "true"), True) | dict.fromkeys(("no", "off", "n", "false"), False)
_NUMBER_LIKE = re.compile(
    r"[-+]?(?:0[0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
    r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF|nan|NaN|NAN))\Z"
)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?\Z")


@lru_cache(maxsize=8192)
def resolve(text: str) -> tuple[Plain, str | None, str | None]:
    """(value, fault, hint) of an unquoted scalar; fault is None where every YAML reader agrees."""
    first = text[:1]
    if not (first.isdigit() or first in "-+.~=<" or text.lower() in _BOOLEANS or text.lower() in _WORDS):
        return text, None, None
    if text in _WORDS:
        return _WORDS[text], None, None
    lowered = text.lower()
    if lowered in _BOOLEANS:
        meant = "true" if _BOOLEANS[lowered] else "false"
        return text, f"unquoted {text} is a truth value in YAML 1.1", f'write {meant}, or "{text}" if text is meant'
    if lowered == "null":
        return text, f"unquoted {text} means nothing in YAML 1.1", f'write null, or "{text}" if text is meant'
    if text in ("=", "<<"):
        return text, f"unquoted {text} has a meaning of its own in YAML 1.1", f'write "{text}" if text is meant'
    if _INT.match(text):
        return int(text), None, None
    if _FLOAT.match(text):
        if len(text) < 18 and repr(float(text)) == text:
            return float(text), None, None
        return text, f"unquoted {text} is read as the number {float(text)!r}", f'write "{text}"'
    if _SEXAGESIMAL.match(text):
        return text, f"unquoted {text} is a base-60 number in YAML 1.1", f'write "{text}"'
    if _DATE.match(text):
        return text, f"unquoted {text} is a date in YAML 1.1", f'write "{text}"'
    if _NUMBER_LIKE.match(text):
        return text, f"unquoted {text} is not the same number to every YAML reader", _number_hint(text)
    return text, None, None


def _number_hint(text: str) -> str:
    digits = text.replace("_", "").lstrip("+")
    stripped = digits.lstrip("0") or "0"
    if digits.isdigit() and len(digits) < 18:
        return f'write {stripped}, or "{text}" if text is meant'
    if re.match(r"0[xob]", digits):
        return f'write {int(digits, 0)}, or "{text}" if text is meant' if len(digits) < 18 else f'write "{text}"'
    return f'write "{text}" if text is meant, or a plain decimal such as 1.5'
