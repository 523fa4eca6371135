"""Whether a Java runtime in this process can read a path: it decodes paths in the encoding of the locale."""

from __future__ import annotations

import locale
from pathlib import Path

from kv_connector.exceptions import PreflightError

UTF_8 = ("UTF-8", "UTF8")


def codeset() -> str:
    """The encoding of this process's locale, whatever Python itself uses."""
    return locale.nl_langinfo(locale.CODESET)


def why_unreadable(path: Path, encoding: str | None = None) -> str:
    """Why a Java runtime cannot read the path, in a few words; "" if it can. ``encoding``: that of the locale."""
    encoding = codeset() if encoding is None else encoding
    if str(path).isascii() or encoding.upper() in UTF_8:
        return ""
    return f"{str(path)!r} has characters beyond ASCII, and the locale's encoding is {encoding}"


def require(*paths: Path, encoding: str | None = None) -> None:
    """Raises PreflightError if a Java runtime cannot read one of the paths."""
    for path in paths:
        unreadable = why_unreadable(path, encoding)
        if unreadable:
            raise PreflightError(
                f"{unreadable}, in which no Java runtime finds the path, expected UTF-8: set LC_ALL=C.UTF-8, or install"
                " below a path of ASCII characters"
            )
